"""fairseq's own commands inside this process: an import of fairseq costs seconds, a command little.

What a console script adds is that an error becomes a traceback and exit status 1.
"""

import importlib
import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fairseq import checkpoint_utils
from test_commands import PLUGIN, TRAIN, write_corpus

LAST = "checkpoint_last.pt"
NO_VALIDATION = "--disable-validation"
LANGUAGES = ["-s", "de", "-t", "en", "--joined-dictionary"]
SEARCH = ["--beam", "2", "--max-len-b", "10", "--cpu"]
SAVE_EPOCHS = [word for word in TRAIN if word != "--no-epoch-checkpoints"]


def call(command: str, *words) -> None:
    """Run `fairseq-COMMAND WORDS`; its errors are raised."""
    main = importlib.import_module(f"fairseq_cli.{command}").cli_main
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # left by an earlier training run
    handlers = logging.getLogger().handlers[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"fairseq-{command}", *map(str, words)])
        try:
            main()
        finally:
            logging.getLogger("fairseq_cli.preprocess").handlers.clear()
            logging.getLogger().handlers[:] = handlers  # fairseq-validate replaces them


def preprocess(folder: Path, *words, workers: int = 1) -> None:
    call("preprocess", *LANGUAGES, "--workers", workers, "--destdir", folder, *words)


def train(data: Path, save_dir: Path, *words, how=TRAIN) -> None:
    call("train", data, "--user-dir", PLUGIN, *how, "--save-dir", save_dir, *words)


def generate(data: Path, checkpoint: Path, *words) -> None:
    call("generate", data, "--user-dir", PLUGIN, "--path", checkpoint, *SEARCH, *words)


def interactive(data: Path, checkpoint: Path, *words) -> None:
    call("interactive", data, "--user-dir", PLUGIN, "--path", checkpoint, *SEARCH, *words)


def make_data(folder: Path) -> Path:
    """Text of three small splits in `folder`, and binarised in the folder that is returned."""
    for seed, (name, count) in enumerate((("train", 40), ("valid", 9), ("test", 7))):
        write_corpus(folder, name, count, seed)
    prefixes = [f"--{name}pref={folder / name}" for name in ("train", "valid", "test")]
    preprocess(folder / "data", *prefixes)
    return folder / "data"


def make_run(folder: Path) -> None:
    """Text, data/ and, after three updates, saved/checkpoint_last.pt."""
    train(make_data(folder), folder / "saved", "--max-update", 3, NO_VALIDATION)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
