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

from lite_transformer_plugin import build, checkpoint_files, compression
from lite_transformer_plugin.cli import compress_sizes, compress_zeros, prune_heads
from lite_transformer_plugin.cli.compress import PARTS, main
from lite_transformer_plugin.cli.compress_zeros import Zeros
from lite_transformer_plugin.compression import KEY
from lite_transformer_plugin.heads import parse_heads
from lite_transformer_plugin.models.pruned import prune_checkpoint
from lite_transformer_plugin.results_folder import ResultsFolder


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


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """The weights of the tests are few, and get codebooks all the same."""
    monkeypatch.setattr(compress_sizes, "SMALLEST", 100)


def results(tmp_path: Path) -> dict[str, dict]:
    found = json.loads((tmp_path / "small/compression.json").read_text())
    assert found["signature"] and found["provenance"]["command"][0] == "fairseq-compress"
    with open(tmp_path / "small/compression.csv") as file:
        assert [row["step"] for row in csv.DictReader(file)] == [r["step"] for r in found["steps"]]
    return {row["step"]: row for row in found["steps"]}


def test_zeros_and_codes(data, path, tmp_path, capsys):
    """Tables, files, and the same translations as were measured; again, nothing is measured."""
    words = ["--bits", 4, "--sparsity", 0.5]
    assert run(data, path, tmp_path / "small.pt", *words) == 0
    out = capsys.readouterr().out
    assert "read back bit for bit" in out and "--arch compressed --compressed-from" in out
    steps = results(tmp_path)
    assert list(steps) == ["fp32", "with zeros", "4 bits"]
    size = (tmp_path / "small.pt").stat().st_size
    assert steps["4 bits"]["bytes"] == pytest.approx(size, abs=2000)  # that say how it was made
    assert steps["4 bits"]["ratio"] > steps["with zeros"]["ratio"]
    weights = build.checkpoint(tmp_path / "small.pt")[0].parameters()
    large = [weight for weight in weights if compress_sizes.is_weight(weight)]
    zeros, number = (sum(map(count, large)) for count in (zeros_in, torch.numel))
    assert 0.5 * number <= zeros < 0.52 * number
    assert all(len(weight.unique()) <= 17 for weight in large)
    assert len(hypotheses(capsys, data, tmp_path / "small.pt")[0]) == 7
    progress = (tmp_path / "small/progress-0.jsonl").read_text()
    assert run(data, path, tmp_path / "small.pt", *words) == 2
    assert "exists: choose another name, or --force" in capsys.readouterr().err
    assert run(data, path, tmp_path / "small.pt", *words, "--force") == 0
    assert (tmp_path / "small/progress-0.jsonl").read_text() == progress
    assert results(tmp_path) == steps


def zeros_in(tensor: torch.Tensor) -> int:
    return int((tensor == 0).sum())


def test_the_authors_count(data, path, tmp_path):
    """Four bits of every weight that is no embedding; the other numbers in two bytes."""
    assert run(data, path, tmp_path / "small.pt", "--bits", 4) == 0
    row, parts = results(tmp_path)["4 bits"], {}
    for name, parameter in build.checkpoint(path)[0].named_parameters():
        if "embed_" not in name:
            weight = compress_sizes.is_weight(parameter)
            parts[weight] = parts.get(weight, 0) + parameter.numel()
    assert row["authors_bytes"] == pytest.approx(parts[True] / 2 + 2 * parts[False], abs=20)
    whole = 4 * sum(parts.values())
    assert row["authors_ratio"] == pytest.approx(whole / row["authors_bytes"], rel=0.01)
    assert row["bytes"] == sum(row[part] for part in PARTS)


def test_a_stopped_command_goes_on(data, path, tmp_path, monkeypatch):
    """What was measured is measured no more, and the file is the same."""
    words, measured = ["--bits", 3, "--sparsity", 0.3, "--no-bleu"], []

    def until(limit: int):
        def sensitivity(weight, *rest):
            measured.append(weight)
            if len(measured) == limit:
                raise KeyboardInterrupt
            return compression.sensitivity(weight, *rest)

        monkeypatch.setattr(compress_zeros, "sensitivity", sensitivity)

    until(4)
    with pytest.raises(KeyboardInterrupt):
        run(data, path, tmp_path / "small.pt", *words)
    assert not (tmp_path / "small.pt").exists()
    until(0)
    assert run(data, path, tmp_path / "small.pt", *words) == 0
    number, measured[:] = len(measured), []
    assert run(data, path, tmp_path / "other.pt", *words) == 0
    assert number == 1 + len(measured)  # one was measured half, and again
    one, other = (checkpoint_files.read(tmp_path / f"{name}.pt") for name in ("small", "other"))
    assert torch.equal(one["model"][KEY], other["model"][KEY])


# --- targets --------------------------------------------------------------------------------------


def test_a_ratio_to_reach(data, path, tmp_path, capsys):
    assert run(data, path, tmp_path / "free.pt", "--bits", 8, "--no-bleu") == 0
    free = json.loads((tmp_path / "free/compression.json").read_text())["steps"][1]["ratio"]
    ratio = max(1.0, 1.1 * free)  # so small a file is mostly its configuration, paths included
    words = ["--bits", 8, "--no-bleu", "--target-ratio", ratio]
    assert run(data, path, tmp_path / "small.pt", *words) == 0
    row = json.loads((tmp_path / "small/compression.json").read_text())["steps"][2]
    assert ratio <= row["ratio"] < 1.1 * ratio  # no more zeros than are needed
    words[-1] = 50
    assert run(data, path, tmp_path / "none.pt", *words) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "--target-ratio 50 cannot be met: 8 bits and 80% zeros reach" in err
    assert not (tmp_path / "none.pt").exists()


@pytest.mark.parametrize("limit, zeros", [(0.1, 0.0), (4, 0.4), (4.9, 0.45), (100, 0.8)])
def test_as_many_zeros_as_lose_no_more(limit, zeros, data, path, tmp_path, monkeypatch):
    """On a model of which each tenth of zeros costs a point."""
    monkeypatch.setattr(Zeros, "lost", lambda self, shares: 10 * share_of(self, shares))
    words = ["--bits", 4, "--no-bleu", "--max-loss", limit]
    assert run(data, path, tmp_path / "small.pt", *words) == 0
    parts = json.loads((tmp_path / "small/compression.json").read_text())["parts"]
    coded = [part for part in parts if part["bits"]]
    found = 1 - sum(p["weights"] for p in coded) / sum(p["of"] for p in coded)
    assert found == pytest.approx(zeros, abs=0.02)


def share_of(zeros: Zeros, shares: dict[str, float]) -> float:
    numbers = {name: zeros.trial.tensors[name].numel() for name in zeros.trial.weights}
    whole = sum(numbers.values())
    return round(sum(shares.get(name, 0) * numbers[name] for name in numbers) / whole, 2)


def test_a_loss_that_codes_alone_exceed(data, path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Zeros, "lost", lambda self, shares: 0.3)
    words = ["--bits", 2, "--no-bleu", "--max-loss", 0.2]
    assert run(data, path, tmp_path / "small.pt", *words) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.endswith(
        "--max-loss 0.2 cannot be met: 2 bits without zeros lose 0.30; more bits lose less"
    )


def test_what_is_lost_is_measured(data, path, tmp_path):
    """The difference between rows of the table, of the validation loss where there is no BLEU."""
    words = ["--bits", 2, "--no-bleu", "--max-loss", 1000]
    assert run(data, path, tmp_path / "small.pt", *words) == 0
    steps = json.loads((tmp_path / "small/compression.json").read_text())["steps"]
    lost = ResultsFolder(tmp_path / "small").known("lost")
    assert len(lost) == 2  # no zeros, and the most
    found = list(lost.values())[1]
    assert found == pytest.approx(steps[2]["loss"] - steps[0]["loss"], abs=1e-6)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        (["--bits", 9], "codes have 2 to 8 bits"),
        (["--bits", 1], "codes have 2 to 8 bits"),
        ([], "nothing to do: give --bits"),
        (["--sparsity", 0.9], "at most 0.8 can be zeros"),
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


def test_heads_go_before_compression(data, path, tmp_path, capsys):
    from compressed_checkpoints import compress

    small = tmp_path / "small.pt"
    compress(path, small)
    words = [data, "--path", small, "--save-ratio", "0.5", "--results-dir", tmp_path / "heads"]
    assert prune_heads.main([*map(str, words), "--cpu"]) == 2
    assert "remove them from the one it was made of" in capsys.readouterr().err
    assert not (tmp_path / "heads").exists()
    model, state = build.checkpoint(small)
    with pytest.raises(ValueError, match="and compress the result"):
        prune_checkpoint(state, parse_heads("E:1:1"), model)


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
