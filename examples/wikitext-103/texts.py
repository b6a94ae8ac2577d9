"""Prepare running text for a language model: WikiText-103, or texts of your own.

WikiText-103 is tokenised and has its rare words replaced: fairseq-preprocess reads it as it is.
Texts of your own, train.txt, valid.txt and test.txt, are tokenised and cut into pieces. Folders are
those of the translation examples, one file for a set: words/train, pieces/train.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import prepare
import text_steps as text
from corpus_files import read_lines, stage
from corpus_sources import SPLITS, Sources
from corpus_steps import Preparation, in_order, to_pieces


class TextSources(Sources):
    """Finds one file for a set."""

    def __init__(self, corpus: dict, data: Path | None, work: Path):
        super().__init__({"source": "", "target": "", **corpus}, data, work)

    def plain(self, split: str) -> list[Path] | None:
        path = self.data / f"{split}.txt" if self.data else None
        return [path] if path and path.is_file() else None

    def _names(self, entry: dict) -> list[str]:
        return [entry["file"]]


class TextPreparation(Preparation):
    """The steps of one corpus without a second language."""

    unit = "lines"

    def paths(self, kind: str, split: str) -> list[Path]:
        return [self.work / kind / split]

    def run(self) -> None:
        if (self.work / "data-bin").exists():
            return
        if self.sources.plain("train"):
            for split in SPLITS:
                self.tokenise(split)
            self.learn()
            for split in SPLITS:
                self.cut(split)
        self.binarise()

    def tokenise(self, split: str) -> None:
        found = self.sources.plain(split)
        if found is None:
            raise prepare.WrongUse(f"--data has train.txt, but no {split}.txt")
        if not self.done([self.paths("words", split)]):
            stage(f"tokenising the {split} set")
        tokens = partial(text.tokenise, language=self.steps["language"])
        self._write("words", split, ((line,) for line in self._each(tokens, read_lines(found[0]))))

    def cut(self, split: str) -> None:
        if not self.done([self.paths("pieces", split)]):
            stage(f"applying BPE to the {split} set")
        pieces = partial(to_pieces, path=self.work / "bpe.codes")
        lines = ((line,) for line in read_lines(self.paths("words", split)[0]))
        self._write("pieces", split, self._each(pieces, lines))

    def _each(self, function, lines: Iterable) -> Iterable:
        return in_order(function, lines, self.workers)

    def _write(self, kind: str, split: str, lines: Iterable[tuple[str]]) -> None:
        self.write([self.paths(kind, split)], ((line, 0) for line in lines))

    def prefix(self, split: str) -> Path:
        if self.sources.plain("train"):
            return self.paths("pieces", split)[0]
        return next(self.sources.files(split))[0]

    def sides(self) -> list[str]:
        return []


if __name__ == "__main__":
    prepare.main(TextSources, TextPreparation)
