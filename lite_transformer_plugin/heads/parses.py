"""Dependency parses of a data set's sentences, and which piece of a sentence belongs to which word.

Parses are of words, models read pieces of words. Both are compared letter by letter, without
spaces, capitals and the marks of pieces (sentencepiece's U+2581, subword-nmt's @@), so that it does
not matter where a tokeniser splits.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import NamedTuple

from fairseq.data import Dictionary, FairseqDataset

LINE = "one word a line, ten columns with tabs between them, and an empty line after each sentence"


class Arc(NamedTuple):
    """A word and its governor, by their places in the sentence from 0."""

    dependent: int
    governor: int
    relation: str


class Parse(NamedTuple):
    """One sentence. A contraction, as German *zum*, is one word: that is what a model reads."""

    words: tuple[str, ...]
    arcs: tuple[Arc, ...]  # without the root, and without those inside of a contraction


# --- CoNLL-U --------------------------------------------------------------------------------------


def read_conllu(path: str | Path) -> list[Parse]:
    """All sentences of a file (https://universaldependencies.org/format.html).

    Raises:
        ValueError: if it is no such file, naming the line.
        OSError: if it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: CoNLL-U is {LINE}") from error
    parses, rows = [], []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.rstrip("\r")
        if line and not line.startswith("#"):
            rows.append(_columns(line, f"{path}, line {number}"))
        elif not line and rows:
            parses.append(_parse(rows, f"{path}, sentence {len(parses) + 1}"))
            rows = []
    if not parses:
        raise ValueError(f"{path} has no sentence: CoNLL-U is {LINE}")
    return parses


def _columns(line: str, where: str) -> list[str]:
    columns = line.split("\t")
    if len(columns) != 10 or not re.fullmatch(r"\d+([-.]\d+)?", columns[0], re.ASCII):
        raise ValueError(f"{where}: {line[:40]!r} is no line of CoNLL-U: it is {LINE}")
    return columns


def _parse(rows: Sequence[Sequence[str]], where: str) -> Parse:
    words, places, last = [], {}, 0
    for number, form, *_ in rows:
        if "-" in number:  # what the next words are contracted to
            words.append(form)
            last = int(number.partition("-")[2])
        elif "." not in number:  # else a word that was left out
            if int(number) > last:
                words.append(form)
            places[number] = len(words) - 1
    arcs = []
    for number, *columns in rows:
        governor, relation = columns[5], columns[6]
        if number in places and governor != "0":
            if governor not in places:
                raise ValueError(
                    f"{where}: word {number} is governed by {governor!r}: no such word"
                )
            if places[number] != places[governor]:
                arcs.append(Arc(places[number], places[governor], relation))
    return Parse(tuple(words), tuple(arcs))


# --- pieces ---------------------------------------------------------------------------------------


def letters(text: str) -> str:
    """What is compared: no spaces and marks of pieces, no capitals, no composed characters."""
    plain = unicodedata.normalize("NFKD", text.replace("\u2581", ""))
    return "".join(plain.casefold().split())


def words_of_pieces(pieces: Sequence[str | None], words: Sequence[str]) -> list[int] | None:
    """The word that each piece belongs to, or None if these are not the letters of those words.

    A piece that reaches over several words belongs to the one with most of its letters, the first
    if that is not clear; one without letters to the word of the next piece.

    Args:
        pieces: None for an unknown one, which stands for one letter or more.
    """
    spelled = [None if piece is None else letters(piece.removesuffix("@@")) for piece in pieces]
    lengths = _lengths([piece for piece in spelled if piece != ""], "".join(map(letters, words)))
    if lengths is None:
        return None
    owners = [i for i, word in enumerate(words) for _ in letters(word)]
    found, end, owner = [], len(owners), max(0, len(words) - 1)
    for piece in reversed(spelled):
        if piece != "":
            end, span = end - lengths[-1], owners[end - lengths.pop() : end]
            owner = max(span, key=span.count)
        found.append(owner)
    return found[::-1]


def _lengths(pieces: Sequence[str | None], text: str) -> list[int] | None:
    """Letters of each piece; of unknown ones in a row each has one and the last has the rest."""
    groups = [(known, list(group)) for known, group in groupby(pieces, lambda p: p is not None)]
    pattern, gap = "", ""
    for i, (known, group) in enumerate(groups):
        if not known:
            gap = f"(.{{{len(group)},}}?)"
            continue
        found = gap + re.escape("".join(group))
        # the first place where it fits will do, but for the last one: no need to try others
        pattern += f"(?>{found})" if i + 1 < len(groups) else found
        gap = ""
    spans = re.fullmatch(pattern + gap, text, re.DOTALL)
    if spans is None:
        return None
    rest = iter(spans.groups())
    lengths = []
    for known, group in groups:
        ones = [1] * (len(group) - 1)
        lengths += map(len, group) if known else [*ones, len(next(rest)) - len(ones)]
    return lengths


def match(
    parses: Sequence[Parse], dataset: FairseqDataset, dictionary: Dictionary, names: tuple[str, str]
) -> list[list[int]]:
    """For every sentence of a data set the words that its pieces belong to, its end left out.

    Args:
        dataset: pairs of sentences, of which the source is parsed.
        names: of the parses and of the data set, for errors.

    Raises:
        ValueError: naming the first sentence that differs.
    """
    found = []
    for i, parse in zip_longest(range(len(dataset)), parses):
        pieces = None if i is None else _pieces(dataset[i]["source"].tolist(), dictionary)
        owners = None if pieces is None or parse is None else words_of_pieces(pieces, parse.words)
        if owners is None:
            parsed = None if parse is None else " ".join(parse.words)
            raise ValueError(
                f"{names[0]} has other sentences than {names[1]}: sentence {len(found) + 1} is "
                f"{_quoted(parsed)} there and {_quoted(pieces and _text(pieces))} here"
            )
        found.append(owners)
    return found


def _pieces(tokens: Sequence[int], dictionary: Dictionary) -> list[str | None]:
    special = {dictionary.bos(), dictionary.pad(), dictionary.eos()}
    unknown = dictionary.unk()
    return [None if t == unknown else dictionary[t] for t in tokens if t not in special]


def _quoted(text: str | None, longest: int = 60) -> str:
    if text is None:
        return "missing"
    return repr(text if len(text) <= longest else f"{text[:longest]} ...")


def _text(pieces: Sequence[str | None]) -> str:
    """As a user knows the sentence."""
    text = " ".join("<unk>" if piece is None else piece for piece in pieces)
    if "\u2581" in text:
        text = text.replace(" ", "").replace("\u2581", " ").replace("<unk>", " <unk> ")
    return " ".join(text.replace("@@ ", "").split())
