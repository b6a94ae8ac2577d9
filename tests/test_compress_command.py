"""`fairseq-compress` from flags to files, and what it refuses."""

import csv
import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from pruned_checkpoints import data_of, hypotheses, train_every
from stock import full_disk

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli.compress import main


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return data_of(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return train_every(tmp_path_factory.getbasetemp())["lite_transformer"]


def run(data: Path, path: Path, output: Path, *words) -> int:
    how = ["--cpu", "--beam", "2", "--max-len-b", "10", "--num-workers", "0"]
    flags = ["--path", path, "--output", output, *words]
    return main([str(word) for word in (data, *flags, *how)])


def test_zeros_and_codes(data, path, tmp_path, capsys):
    """Tables, files, and the same translations as were measured; again, nothing is measured."""
    model = build.checkpoint(path)[0]
    big = sum(p.numel() >= 1024 for p in model.parameters())
    assert big == 0  # the weights of the tests are few: all are kept as they are
    assert run(data, path, tmp_path / "small.pt", "--bits", 4) == 0
    out = capsys.readouterr().out
    assert "read back bit for bit" in out and "--arch compressed --compressed-from" in out
    found = json.loads((tmp_path / "small/compression.json").read_text())
    assert [row["step"] for row in found["steps"]] == ["fp32", "4 bits"]
    assert found["steps"][1]["bytes"] == pytest.approx(
        (tmp_path / "small.pt").stat().st_size, abs=2000
    )
    with open(tmp_path / "small/compression.csv") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert len(hypotheses(capsys, data, tmp_path / "small.pt")[0]) == 7
    progress = (tmp_path / "small/progress-0.jsonl").read_text()
    assert run(data, path, tmp_path / "small.pt", "--bits", 4) == 2
    assert "exists: choose another name, or --force" in capsys.readouterr().err
    assert run(data, path, tmp_path / "small.pt", "--bits", 4, "--force") == 0
    assert (tmp_path / "small/progress-0.jsonl").read_text() == progress


@pytest.mark.parametrize(
    "words, message",
    [
        (["--bits", 9], "codes have 2 to 8 bits"),
        (["--bits", 1], "codes have 2 to 8 bits"),
        ([], "nothing to do: give --bits"),
        (["--sparsity", 1], "a share of zeros lies from 0 to below 1"),
        (["--target-ratio", 2, "--sparsity", 0.5], "not allowed with"),
        (["--bits", 4, "--gen-subset", "none"], "there is no such split"),
    ],
)
def test_bad_flags(words, message, data, path, tmp_path, capsys):
    assert run(data, path, tmp_path / "small.pt", *words) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert message in err[-1] and err[-1].startswith("fairseq-compress: ")
    assert not (tmp_path / "small.pt").exists()


def test_twice(data, path, tmp_path, capsys):
    from compressed_checkpoints import compress

    compress(path, tmp_path / "once.pt")
    assert run(data, tmp_path / "once.pt", tmp_path / "twice.pt", "--bits", 3) == 2
    assert "once.pt is compressed already" in capsys.readouterr().err


def test_a_checkpoint_cut_short(data, path, tmp_path, capsys):
    (tmp_path / "short.pt").write_bytes(path.read_bytes()[:5000])
    assert run(data, tmp_path / "short.pt", tmp_path / "small.pt", "--bits", 3) == 2
    assert "short.pt is cut short" in capsys.readouterr().err


def test_no_space(data, path, tmp_path, capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage(10, 10, 0))
    assert run(data, path, tmp_path / "small.pt", "--bits", 3) == 2
    assert "has 0.0 KB left" in capsys.readouterr().err


def test_a_disk_that_fills(data, path, tmp_path, capsys):
    with full_disk(15_000):
        assert run(data, path, tmp_path / "small.pt", "--bits", 3, "--no-bleu") == 2
    assert "cannot write a checkpoint" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.pt")) and not list(tmp_path.glob(".small*"))


def test_zeros_are_kept_when_codes_follow(data, path, tmp_path):
    from compressed_checkpoints import compress

    compress(path, tmp_path / "sparse.pt", bits=None)
    zeros = build.checkpoint(tmp_path / "sparse.pt")[0].state_dict()
    assert run(data, tmp_path / "sparse.pt", tmp_path / "small.pt", "--bits", 5, "--no-bleu") == 0
    after = build.checkpoint(tmp_path / "small.pt")[0].state_dict()
    assert all(torch.equal(after[name] == 0, t == 0) for name, t in zeros.items())
    assert "compression" in checkpoint_files.read(tmp_path / "small.pt")
