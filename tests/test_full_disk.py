"""Disks that fill under stock commands: an error, and the previous checkpoint as it was."""

import errno
import io
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from stock import LAST, NO_VALIDATION, contents, full_disk, generate, make_run, preprocess, train
from test_commands import BIN, PLUGIN, TRAIN


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Text, binarised data and a checkpoint after three updates."""
    folder = tmp_path_factory.mktemp("full")
    make_run(folder)
    return folder


def test_a_disk_that_fills_while_saving(work, tmp_path):
    """As a user sees it; with space again, training goes on from the previous checkpoint."""
    saved = shutil.copytree(work / "saved", tmp_path / "saved")
    before, limit = contents(saved), (saved / LAST).stat().st_size // 2
    command = [BIN / "fairseq-train", work / "data", "--user-dir", PLUGIN, *TRAIN]
    command += ["--save-dir", saved, "--max-update", 5, NO_VALIDATION]
    result = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith(f"OSError: [Errno {errno.EFBIG}] File too large")
    (saved / f"{LAST}.tmp").unlink()  # what there was space for
    assert contents(saved) == before
    train(work / "data", saved, "--max-update", 5, NO_VALIDATION)
    assert torch.load(saved / LAST)["optimizer_history"][-1]["num_updates"] == 5


def small_and_large(folder: Path) -> tuple[str, str]:
    """A previous checkpoint, and a larger one to take its place."""
    (folder / "previous").write_bytes(b"previous")
    (folder / "new").write_bytes(bytes(200_000))
    return str(folder / "new"), str(folder / "previous")


def test_a_disk_that_fills_while_a_checkpoint_is_copied(tmp_path):
    new, previous = small_and_large(tmp_path)
    with full_disk(100_000), pytest.raises(OSError):
        PathManager.copy(new, previous, overwrite=True)
    assert Path(previous).read_bytes() == b"previous"
    assert sorted(os.listdir(tmp_path)) == ["new", "previous"]
    assert PathManager.copy(new, previous, overwrite=True)
    assert Path(previous).stat().st_size == 200_000
    assert sorted(os.listdir(tmp_path)) == ["new", "previous"]


def test_a_checkpoint_is_copied_to_where_a_link_points(tmp_path):
    new, previous = small_and_large(tmp_path)
    os.symlink(previous, tmp_path / "link")
    PathManager.copy(new, str(tmp_path / "link"), overwrite=True)
    assert (tmp_path / "link").is_symlink() and Path(previous).stat().st_size == 200_000


def test_fairseq_still_copies_onto_the_previous_checkpoint(tmp_path):
    """When this fails, fairseq is mended and the mend can go."""
    new, previous = small_and_large(tmp_path)
    with full_disk(100_000), pytest.raises(OSError):
        PathManager.copy.__wrapped__(new, previous, overwrite=True)
    assert Path(previous).read_bytes() != b"previous"


class FailingOnce:
    """torch.save on a disk that is full for a moment, when half of the file is written."""

    def __init__(self) -> None:
        self.save, self.failed = torch.save, False

    def __call__(self, obj, file) -> None:
        if self.failed:
            return self.save(obj, file)
        self.failed, whole = True, io.BytesIO()
        self.save(obj, whole)
        file.write(whole.getvalue()[: whole.tell() // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def failing_once(monkeypatch) -> dict:
    monkeypatch.setattr(torch, "save", FailingOnce())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return {"weight": torch.arange(1000)}


def test_a_checkpoint_that_was_saved_at_the_second_try_is_whole(failing_once, tmp_path, caplog):
    path = str(tmp_path / LAST)
    checkpoint_utils.torch_persistent_save(failing_once, path)
    torch.testing.assert_close(torch.load(path), failing_once)
    assert "saving failed and is tried again: [Errno 28]" in caplog.text


def test_fairseq_still_saves_behind_what_failed(failing_once, tmp_path, monkeypatch):
    """When this fails, fairseq is mended and the mend can go."""
    mended = checkpoint_utils._torch_persistent_save
    monkeypatch.setattr(checkpoint_utils, mended.__name__, mended.__wrapped__)
    path = str(tmp_path / LAST)
    checkpoint_utils.torch_persistent_save(failing_once, path)
    with pytest.raises(RuntimeError, match="corrupt"):
        torch.load(path)


def test_a_disk_that_stays_full_while_saving(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    path = tmp_path / LAST
    path.write_bytes(b"previous")
    with full_disk(100_000), pytest.raises((OSError, RuntimeError)):  # torch says either
        checkpoint_utils.torch_persistent_save({"weight": torch.zeros(100_000)}, str(path))
    assert path.read_bytes() == b"previous"


def test_a_disk_that_fills_while_preprocessing(work, tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"large.{language}").write_text("a b c d e f g h\n" * 10_000)
    dictionary = ["--srcdict", work / "data/dict.de.txt"]
    with full_disk(100_000), pytest.raises(OSError):
        preprocess(tmp_path / "bin", "--trainpref", tmp_path / "large", *dictionary)
    with pytest.raises(FileNotFoundError, match="Dataset not found"):
        train(tmp_path / "bin", tmp_path / "saved", NO_VALIDATION)


def test_a_disk_that_fills_with_translations(work, tmp_path):
    results = ["--results-path", tmp_path]
    os.symlink("/dev/full", tmp_path / "generate-test.txt")
    with pytest.raises(OSError, match="No space left"):
        generate(work / "data", work / "saved" / LAST, *results)
