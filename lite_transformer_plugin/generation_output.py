"""What fairseq-generate prints: sources, references and translations, in the order of the set.

It translates sentences of like length together, so its lines come in another order, among those of
its log. Of every sentence it prints, after a letter, a hyphen and the sentence's number:
    S-7    source                    T-7    reference
    H-7    score    tokens           D-7    score    detokenised
"""

import re
from collections.abc import Iterator
from pathlib import Path

SCORED = ("H", "D")


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text, cut at line feeds only, as fairseq and SentencePiece cut them.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_sentences(generated: Path, kind: str, expected: int | None = None) -> list[str]:
    """The text of the lines of one kind, "S", "T", "H" or "D", one for each sentence of the set.

    Raises:
        ValueError: if sentences are missing, of those ``expected`` or up to the last one found.
    """
    # a log line can begin with the letter, and even with a hyphen after it
    score = r"[^\t]*\t" if kind in SCORED else ""
    pattern = re.compile(rf"{kind}-(\d+)\t{score}(.*)")
    matches = map(pattern.match, read_lines(generated))
    found = {int(match[1]): match[2] for match in matches if match}
    if expected is None:
        expected = max(found, default=0) + 1
    if sorted(found) != list(range(expected)):
        raise ValueError(
            f"{generated} does not hold the {kind}- lines of every sentence: "
            f"{len(found)}, not {expected}"
        )
    return [found[number] for number in range(expected)]
