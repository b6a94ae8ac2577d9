"""Tokenise and cut a test set as the published model's training text was: Moses, then BPE."""

import sys
from pathlib import Path

try:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from subword_nmt.apply_bpe import BPE
except ModuleNotFoundError as error:
    raise SystemExit(
        f"pieces.py: {error.name} is missing: pip install 'lite-transformer-plugin[translation]'"
    ) from error


def main(codes: str, source: str, target: str) -> None:
    """Write TARGET.en and TARGET.fr from SOURCE.en and SOURCE.fr, whole or not at all."""
    with open(codes, encoding="utf-8") as file:
        bpe = BPE(file)
    for language in ("en", "fr"):
        normalise = MosesPunctNormalizer(language).normalize
        tokenise = MosesTokenizer(language).tokenize
        lines = Path(f"{source}.{language}").read_text("utf-8").rstrip("\n").split("\n")
        tokens = (tokenise(normalise(line), return_str=True, escape=False) for line in lines)
        unfinished = Path(f"{target}.{language}.tmp")
        unfinished.write_text("".join(bpe.segment(line) + "\n" for line in tokens), "utf-8")
        unfinished.replace(f"{target}.{language}")


if __name__ == "__main__":
    main(*sys.argv[1:])
