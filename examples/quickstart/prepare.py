"""Unpack the committed corpus, learn one vocabulary for both languages and encode every split.

Writes below the work folder, skipping what is already there:
    text/{train,valid,test}.{de,en}      the sentences as they are
    sentencepiece.model                  4,000 pieces, German and English together
    pieces/{train,valid,test}.{de,en}    the sentences cut into pieces, for fairseq-preprocess
"""

import argparse
import hashlib
import tarfile
from pathlib import Path

import sentencepiece as spm

ARCHIVE = Path(__file__).resolve().parent / "data" / "lohelp-de.tar.xz"
SHA256 = "d292e5ac0e3d87a8249f9bc3a09275e20d5e4b830308d453d1c184bf3aee1aba"
SPLITS = ("train", "valid", "test")
LANGUAGES = ("de", "en")
VOCABULARY_SIZE = 4000


def write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: an interrupted run leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def unpack(text: Path) -> None:
    """Copy the six files of the archive into the folder `text`."""
    wanted = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]
    if all((text / name).exists() for name in wanted):
        return
    if not ARCHIVE.exists():
        raise SystemExit(f"prepare.py: {ARCHIVE} is missing: is the checkout complete?")
    found = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"prepare.py: {ARCHIVE} has sha256 {found}, expected {SHA256}")
    with tarfile.open(ARCHIVE) as archive:
        for name in wanted:
            write_whole(text / name, archive.extractfile(f"lohelp-de/{name}").read())


def learn_vocabulary(text: Path, model: Path) -> None:
    """Train the joint SentencePiece model on both sides of the training text.

    BPE rather than unigram: it learns in a third of the time, and its merges are counts, so
    every machine gets the same pieces.
    """
    if model.exists():
        return
    unfinished = model.with_name("sentencepiece.tmp")
    spm.SentencePieceTrainer.train(
        input=[str(text / f"train.{language}") for language in LANGUAGES],
        model_prefix=str(unfinished),
        vocab_size=VOCABULARY_SIZE,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,  # errors only
    )
    unfinished.with_suffix(".tmp.vocab").unlink()
    unfinished.with_suffix(".tmp.model").replace(model)


def encode(text: Path, pieces: Path, model: Path) -> None:
    """Cut every sentence into pieces, separated by blanks."""
    processor = spm.SentencePieceProcessor(model_file=str(model))
    for split in SPLITS:
        for language in LANGUAGES:
            target = pieces / f"{split}.{language}"
            if target.exists():
                continue
            # Not splitlines(): it also cuts at characters that are no line end in these files.
            lines = (text / target.name).read_text(encoding="utf-8").rstrip("\n").split("\n")
            encoded = processor.encode(lines, out_type=str)
            content = "".join(" ".join(line) + "\n" for line in encoded)
            write_whole(target, content.encode("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path, help="folder that everything is written to")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    unpack(work / "text")
    learn_vocabulary(work / "text", work / "sentencepiece.model")
    encode(work / "text", work / "pieces", work / "sentencepiece.model")


if __name__ == "__main__":
    main()
