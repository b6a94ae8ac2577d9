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
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

from corpus_files import Failure, WrongUse, say, stage, whole
from corpus_sources import Sources
from corpus_steps import Preparation


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


def prepare(
    argv: list[str],
    sources_kind: type[Sources] = Sources,
    preparation_kind: type[Preparation] = Preparation,
) -> None:
    args = parse(argv)
    corpus = read_corpus(args)
    args.work.mkdir(parents=True, exist_ok=True)
    with open(args.work / "prepare.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WrongUse(f"another prepare.sh is at work in {args.work}") from error
        sources = sources_kind(corpus, args.data, args.work)
        check_unchanged(args, corpus, sources.origin())
        sources.open()
        preparation_kind(corpus, sources, args.work, args.workers).run()
    stage(f"ready: {args.work / 'data-bin'}")


def main(*kinds: type) -> None:
    try:
        prepare(sys.argv[1:], *kinds)
    except (WrongUse, Failure) as error:
        say(f"prepare.sh: {error}")
        sys.exit(2 if isinstance(error, WrongUse) else 1)
    except KeyboardInterrupt:
        say("prepare.sh: stopped; the same command goes on from here")
        sys.exit(130)


if __name__ == "__main__":
    main()
