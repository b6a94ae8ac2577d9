"""Prepare the corpus of one example: download, tokenise, clean, split, BPE, binarise.

What to do stands in the example's corpus.toml. Everything is written below the work folder, whole
or not at all, and what is there already is not made again:
    downloads/                       archives
    original/                        the files wanted of them
    raw/test.{source,target}         sentences as they are, for sacreBLEU
    words/{train,valid,test}.*       tokens
    bpe.codes                        merges, learnt on both languages of words/train
    pieces/{train,valid,test}.*      tokens cut into pieces, for fairseq-preprocess
    data-bin/                        what fairseq-train reads
"""

import argparse
import fcntl
import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path

import text_steps as text
from corpus_files import (
    MISSING,
    Failure,
    WrongUse,
    download,
    read_lines,
    say,
    unpack,
    verified,
    whole,
)

try:
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe
except ModuleNotFoundError as error:
    raise SystemExit(MISSING.format(error.name)) from error

SPLITS = ("train", "valid", "test")
BATCH = 5000  # pairs a process gets at once
Pair = tuple[str, str]
START = time.monotonic()


def stage(what: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    say(f"[{minutes}:{seconds:02d}] {what}")


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


# --- where the text comes from --------------------------------------------------------------------


class Sources:
    """Finds the files of corpus.toml: the user's own, else downloaded ones."""

    def __init__(self, corpus: dict, data: Path | None, work: Path):
        self.corpus, self.work = corpus, work
        self.languages = (corpus["source"], corpus["target"])
        self.original = work / "original"
        self.data = data

    def origin(self) -> str:
        """What the text is: the published one is the same wherever its files lie."""
        return f"train.* in {self.data.resolve()}" if self.plain("train") else "published"

    def open(self) -> None:
        """Unpack the archive that the user has named."""
        if self.data is not None and self.data.is_file():
            unpack(self.data, self._all_names(), self.original)
            self.data = None

    def plain(self, split: str) -> list[Path] | None:
        """The user's own train, valid or test: a pair of files with a sentence a line."""
        if self.data is None:
            return None
        found = [self.data / f"{split}.{language}" for language in self.languages]
        return found if all(path.is_file() for path in found) else None

    def pieces(self, split: str) -> list[Path] | None:
        """Files that went through all steps but the last, if they are at hand."""
        pattern = self.corpus.get("preprocessed", {}).get(split)
        return pattern and self._have(self._names({"file": pattern}))

    def files(self, split: str) -> Iterator[list[Path]]:
        """The pairs of files that corpus.toml names; what is missing is downloaded."""
        for entry in self.corpus.get(split, []):
            names = self._names(entry)
            if self._have(names) is None:
                self._fetch(entry["archive"])
            found = self._have(names)
            if found is None:
                raise Failure(f"{entry['archive']} does not hold {' and '.join(names)}")
            yield found

    def _names(self, entry: dict) -> list[str]:
        sides = zip(self.languages, ("src", "ref"), strict=True)
        return [entry["file"].format(language=language, side=side) for language, side in sides]

    def _all_names(self) -> set[str]:
        entries = [entry for split in SPLITS for entry in self.corpus.get(split, [])]
        entries += [{"file": name} for name in self.corpus.get("preprocessed", {}).values()]
        return {name for entry in entries for name in self._names(entry)}

    def _have(self, names: list[str]) -> list[Path] | None:
        """Files of these names, in the user's folder at any depth or already unpacked."""
        found = []
        for name in names:
            places = itertools.chain(
                self.data.rglob(name) if self.data else (), self.original.glob(name)
            )
            found.append(next((path for path in places if path.is_file()), None))
        return None if None in found else found

    def _fetch(self, name: str) -> None:
        """Unpack an archive, the user's or the downloaded one."""
        archive = next(self.data.rglob(name), None) if self.data else None
        if archive is None:
            archive = self._downloaded(name)
        stage(f"unpacking {name}")
        unpack(archive, self._all_names(), self.original)

    def _downloaded(self, name: str) -> Path:
        known = self.corpus["archives"][name]
        archive = self.work / "downloads" / name
        if not archive.exists():
            stage(f"downloading {known['url']}")
            try:
                download(known["url"], archive)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Failure(
                    f"cannot download {known['url']} ({error}): get {name} elsewhere (README.md "
                    "says where), and name its folder with --data FOLDER"
                ) from error
        verified(archive, known.get("checksum"), archive.with_name(name + ".checksum"))
        return archive


def sentences(path: Path) -> Iterable[str]:
    if path.suffix in (".xml", ".sgm"):
        return text.segments("\n".join(read_lines(path)))
    if path.name.startswith("train.tags."):
        return text.talk_sentences(read_lines(path))
    return read_lines(path)


def pairs(paths: list[Path]) -> Iterator[Pair]:
    """Sentence pairs of two files, which must have equally many."""
    for source, target in itertools.zip_longest(*map(sentences, paths)):
        if source is None or target is None:
            raise Failure(f"{paths[0]} and {paths[1]} differ in their number of sentences")
        yield source, target


# --- the steps ------------------------------------------------------------------------------------


def to_tokens(pair: Pair, languages: Pair, steps: dict, training: bool) -> Pair:
    """Both sides of a pair, tokenised."""
    result = []
    for sentence, language in zip(pair, languages, strict=True):
        if training and steps["normalise"]:
            sentence = text.normalise(sentence, language)
        if not training and steps["straighten"]:
            sentence = text.straighten(sentence)
        tokens = text.tokenise(sentence, language, steps["split_dashes"])
        result.append(tokens.lower() if steps["lowercase"] else tokens)
    return tuple(result)


def clean(pairs: Iterable[Pair], limits: dict | None) -> Iterator[Pair]:
    """Without the pairs that are too long, too short or too unequal; spaces made single."""
    for pair in pairs:
        if limits is None or text.is_clean(*pair, **limits):
            yield tuple(" ".join(side.split()) for side in pair)


@cache
def codes(path: Path) -> BPE:
    with open(path, encoding="utf-8") as file:
        return BPE(file)


def to_pieces(pair: Pair, path: Path) -> Pair:
    return tuple(codes(path).segment(side) for side in pair)


class Preparation:
    """The steps of one corpus in one work folder; each leaves its files, and is then skipped."""

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
        kept = enumerate(clean(tokens, self.steps.get("clean_tokens")), start=1)
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
        return partial(to_tokens, languages=self.languages, steps=self.steps, training=training)

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
            cut = clean(cut, self.steps.get("clean_pieces"))
        self.write([outputs], ((pair, 0) for pair in cut))

    def binarise(self) -> None:
        unfinished = self.work / "data-bin.tmp"
        stage("fairseq-preprocess: pieces to numbers")
        shutil.rmtree(unfinished, ignore_errors=True)
        source, target = self.languages
        command = ["fairseq-preprocess", "--source-lang", source, "--target-lang", target]
        command += ["--destdir", unfinished, "--workers", self.workers, *self.steps["dictionary"]]
        for split in SPLITS:
            command += [f"--{split}pref", self.work / "pieces" / split]
        log = self.work / "preprocess.log"
        with open(log, "w") as file:
            status = subprocess.call(list(map(str, command)), stdout=file, stderr=file)
        if status:
            last = log.read_text(errors="replace").strip().split("\n")[-1]
            raise Failure(f"fairseq-preprocess failed: {last[:200]} [whole log: {log}]")
        unfinished.replace(self.work / "data-bin")

    @staticmethod
    def done(outputs: list[list[Path]]) -> bool:
        return all(path.exists() for group in outputs for path in group)

    def write(self, outputs: list[list[Path]], routed: Iterable[tuple[Pair, int]]) -> None:
        """Write every pair to the group of files that its number names."""
        if self.done(outputs):
            return
        counts = [0] * len(outputs)
        with whole(itertools.chain(*outputs)) as files:
            for pair, group in routed:
                counts[group] += 1
                for side, line in enumerate(pair):
                    files[2 * group + side].write(line + "\n")
            for group, count in zip(outputs, counts, strict=True):
                say(f"  {group[0].parent.name}/{group[0].stem}: {count:,} pairs")
                if count == 0:
                    raise Failure(f"no sentence pair is left for {group[0].stem}")


# --- the command ----------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise WrongUse(message)


def parse(argv: list[str]) -> argparse.Namespace:
    p = Parser("prepare.sh", description=__doc__.split("\n")[0])
    env = os.environ.get
    p.add_argument("example", type=Path, help=argparse.SUPPRESS)
    p.add_argument(
        "--data",
        type=Path,
        default=env("DATA") or None,
        help="what you have: a folder with archives, files of them, or train.*, valid.* and "
        "test.* of both languages; or one archive (default: $DATA, else all is downloaded)",
    )
    p.add_argument("--work", type=Path, default=env("WORK"), help="where everything is written")
    p.add_argument("--workers", default=env("WORKERS", str(os.cpu_count())), help="processes")
    p.add_argument("--bpe-merges", default=env("BPE_MERGES"), help="another number of merges")
    p.add_argument("--force", action="store_true", default=env("FORCE") == "1", help="make anew")
    args = p.parse_args(argv)
    if args.data is not None and not args.data.exists():
        raise WrongUse(f"--data ({args.data}) is not there")
    args.workers = whole_number("--workers", args.workers)
    args.work = args.work or args.example / "work"
    return args


def whole_number(name: str, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise WrongUse(f"{name} ({value}) must be a whole number above 0")
    return int(value)


def read_corpus(args: argparse.Namespace) -> dict:
    with open(args.example / "corpus.toml", "rb") as file:
        corpus = tomllib.load(file)
    if args.bpe_merges:
        corpus["steps"]["bpe_merges"] = whole_number("--bpe-merges", args.bpe_merges)
    return corpus


def check_unchanged(args: argparse.Namespace, corpus: dict, origin: str) -> None:
    """Refuse to mix files of two ways to prepare; with --force, remove those of the first.

    Downloads stay: they are the same for all.
    """
    record = args.work / "prepared.json"
    now = {"steps": corpus["steps"], "text": origin}
    if args.force:
        for name in ("data-bin", "pieces", "words", "raw", "original"):
            shutil.rmtree(args.work / name, ignore_errors=True)
        (args.work / "bpe.codes").unlink(missing_ok=True)
    elif record.exists() and json.loads(record.read_text()) != now:
        raise WrongUse(
            f"{args.work} was prepared with other settings ({record.name} has them): choose "
            "another --work, or --force to make it anew"
        )
    with whole([record]) as (file,):
        file.write(json.dumps(now, indent=1) + "\n")


def prepare(argv: list[str]) -> None:
    args = parse(argv)
    corpus = read_corpus(args)
    args.work.mkdir(parents=True, exist_ok=True)
    with open(args.work / "prepare.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WrongUse(f"another prepare.sh is at work in {args.work}") from error
        sources = Sources(corpus, args.data, args.work)
        check_unchanged(args, corpus, sources.origin())
        sources.open()
        Preparation(corpus, sources, args.work, args.workers).run()
    stage(f"ready: {args.work / 'data-bin'}")


def main() -> None:
    try:
        prepare(sys.argv[1:])
    except (WrongUse, Failure) as error:
        say(f"prepare.sh: {error}")
        sys.exit(2 if isinstance(error, WrongUse) else 1)
    except KeyboardInterrupt:
        say("prepare.sh: stopped; the same command goes on from here")
        sys.exit(130)


if __name__ == "__main__":
    main()
