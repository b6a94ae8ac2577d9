"""The steps from a corpus to what fairseq-train reads: tokenise, clean, split, BPE, binarise."""

import itertools
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path

import text_steps as text
from corpus_files import MISSING, Failure, WrongUse, read_lines, say, stage, whole
from corpus_sources import SPLITS, Sources, pairs

try:
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe
except ModuleNotFoundError as error:
    raise SystemExit(MISSING.format(error.name)) from error

BATCH = 5000  # pairs a process gets at once


def in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    """`map` on several processes that does not read far ahead, as `Pool.imap` would."""
    if workers == 1:
        yield from map(function, items)
        return
    items = iter(items)
    # Ctrl-C reaches every process of the terminal; the parent ends the others
    with Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        while block := list(itertools.islice(items, workers * BATCH)):
            yield from pool.map(function, block, chunksize=BATCH // 4)


@cache
def codes(path: Path) -> BPE:
    with open(path, encoding="utf-8") as file:
        return BPE(file)


def to_pieces(pair: text.Pair, path: Path) -> text.Pair:
    return tuple(codes(path).segment(side) for side in pair)


class Preparation:
    """The steps of one corpus in one work folder; each leaves its files, and is then skipped."""

    unit = "pairs"  # of what the sets are counted in

    def __init__(self, corpus: dict, sources: Sources, work: Path, workers: int):
        self.steps, self.sources = corpus["steps"], sources
        self.work, self.workers = work, workers
        self.languages = sources.languages

    def paths(self, kind: str, split: str) -> list[Path]:
        return [self.work / kind / f"{split}.{language}" for language in self.languages]

    def run(self) -> None:
        if (self.work / "data-bin").exists():  # then the sources may be gone
            return
        if self.sources.pieces("train"):
            self.take_pieces()
        else:
            if not self.done([self.paths("words", split) for split in SPLITS]):
                self.take_text()
            self.learn()
            for split in SPLITS:
                self.cut(split)
        self.binarise()

    def take_pieces(self) -> None:
        """Start from text that has been cut into pieces already."""
        stage("taking text that is cut into pieces already")
        for split in SPLITS:
            files = self.sources.pieces(split)
            if files is None:
                raise WrongUse(f"the preprocessed corpus has a training set, but no {split} set")
            self.write([self.paths("pieces", split)], ((pair, 0) for pair in pairs(files)))
        raw = self.sources.pieces("raw")
        if raw:
            self.write([self.paths("raw", "test")], ((pair, 0) for pair in pairs(raw)))

    def take_text(self) -> None:
        """Tokenise all sets; hold pairs back from training where there is no validation set."""
        held_out = self.given("valid") is None
        for split in ("valid", "test"):
            if split != "valid" or not held_out:
                self.tokenise_held(split)
        outputs = [self.paths("words", split) for split in ("train", "valid")[: 1 + held_out]]
        if self.done(outputs):
            return
        found = self.given("train")
        stage("tokenising the training set")
        read = itertools.chain.from_iterable(map(pairs, found))
        tokens = in_order(self.tokeniser(training=True), read, self.workers)
        kept = enumerate(text.clean(tokens, self.steps.get("clean_tokens")), start=1)
        every = self.steps.get("hold_out")
        if held_out and not every:
            raise WrongUse(f"{self.sources.data} has no valid.* of both languages")
        routed = ((pair, int(held_out and text.is_held_out(n, every))) for n, pair in kept)
        self.write(outputs, routed)

    def given(self, split: str) -> list[list[Path]] | None:
        """The pairs of files of a split: the user's plain ones go before those of corpus.toml."""
        plain = {name: self.sources.plain(name) for name in SPLITS}
        if plain["train"]:
            if plain["test"] is None:
                raise WrongUse(f"{self.sources.data} has train.*, but no test.* of both languages")
            return [plain[split]] if plain[split] else None
        return list(self.sources.files(split)) or None

    def tokeniser(self, training: bool) -> Callable:
        return partial(
            text.to_tokens, languages=self.languages, steps=self.steps, training=training
        )

    def tokenise_held(self, split: str) -> None:
        """Keep a validation or test set as it is, and tokenise it."""
        raw, words = self.paths("raw", split), self.paths("words", split)
        if not self.done([raw]):
            stage(f"reading the {split} set")
            read = itertools.chain.from_iterable(map(pairs, self.given(split)))
            self.write([raw], ((pair, 0) for pair in read))
        if not self.done([words]):
            tokens = map(self.tokeniser(training=False), pairs(raw))
            self.write([words], ((pair, 0) for pair in tokens))

    def learn(self) -> None:
        """Learn the merges on both languages of the training set together."""
        target = self.work / "bpe.codes"
        if target.exists():
            return
        stage(f"learning {self.steps['bpe_merges']} BPE merges")
        counts = Counter()
        for path in self.paths("words", "train"):
            for line in read_lines(path):
                counts.update(line.split())
        listed = (f"{word} {count}" for word, count in counts.items())
        with whole([target]) as (file,):
            learn_bpe(listed, file, self.steps["bpe_merges"], is_dict=True)

    def cut(self, split: str) -> None:
        """Cut the tokens of a set into pieces; clean all sets but the test set by them."""
        outputs = self.paths("pieces", split)
        if self.done([outputs]):
            return
        stage(f"applying BPE to the {split} set")
        function = partial(to_pieces, path=self.work / "bpe.codes")
        cut = in_order(function, pairs(self.paths("words", split)), self.workers)
        if split != "test":
            cut = text.clean(cut, self.steps.get("clean_pieces"))
        self.write([outputs], ((pair, 0) for pair in cut))

    def binarise(self) -> None:
        unfinished = self.work / "data-bin.tmp"
        stage("fairseq-preprocess: pieces to numbers")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = ["fairseq-preprocess", *self.sides()]
        command += ["--destdir", unfinished, "--workers", self.workers, *self.steps["dictionary"]]
        for split in SPLITS:
            command += [f"--{split}pref", self.prefix(split)]
        log = self.work / "preprocess.log"
        with open(log, "w") as file:
            status = subprocess.call(list(map(str, command)), stdout=file, stderr=file)
        if status:
            last = log.read_text(errors="replace").strip().split("\n")[-1]
            raise Failure(f"fairseq-preprocess failed: {last[:200]} [whole log: {log}]")
        unfinished.replace(self.work / "data-bin")

    def sides(self) -> list[str]:
        source, target = self.languages
        return ["--source-lang", source, "--target-lang", target]

    def prefix(self, split: str) -> Path:
        return self.work / "pieces" / split

    @staticmethod
    def done(outputs: list[list[Path]]) -> bool:
        return all(path.exists() for group in outputs for path in group)

    def write(self, outputs: list[list[Path]], routed: Iterable[tuple[text.Pair, int]]) -> None:
        """Write every pair to the group of files that its number names."""
        if self.done(outputs):
            return
        counts = [0] * len(outputs)
        with whole(itertools.chain(*outputs)) as files:
            for pair, group in routed:
                counts[group] += 1
                for side, line in enumerate(pair):
                    files[len(outputs[group]) * group + side].write(line + "\n")
            for group, count in zip(outputs, counts, strict=True):
                say(f"  {group[0].parent.name}/{group[0].stem}: {count:,} {self.unit}")
                if count == 0:
                    raise Failure(f"no sentence pair is left for {group[0].stem}")
