"""Checkpoints are read safely, and found by the names that fairseq-train gives them."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from lite_transformer_plugin.checkpoint_files import best, last, read, scored, updates

EPOCHS = [f"checkpoint{i}.pt" for i in (1, 2, 3, 10)]
UPDATES = ["checkpoint_1_50.pt", "checkpoint_1_100.pt", "checkpoint_2_150.pt"]
OTHERS = ["checkpoint_best.pt", "checkpoint_last.pt", "checkpoint11.pt.tmp", "notes.txt"]


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in [*EPOCHS, *UPDATES, *OTHERS]:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    "unit, number, bound, expected",
    [
        ("epoch", 2, None, ["checkpoint3.pt", "checkpoint10.pt"]),
        ("epoch", 2, 9, ["checkpoint2.pt", "checkpoint3.pt"]),
        ("epoch", 2, 3, ["checkpoint2.pt", "checkpoint3.pt"]),
        ("epoch", 4, None, EPOCHS),
        ("update", 2, None, ["checkpoint_1_100.pt", "checkpoint_2_150.pt"]),
        ("update", 2, 100, ["checkpoint_1_50.pt", "checkpoint_1_100.pt"]),
    ],
)
def test_the_last_by_number(unit, number, bound, expected, folder):
    assert [path.name for path in last(folder, unit, number, bound)] == expected


@pytest.mark.parametrize(
    "unit, number, bound, message",
    [
        ("epoch", 3, 2, "3 epoch checkpoints up to 2 asked for, found checkpoint1.pt, che"),
        ("update", 4, None, "4 update checkpoints asked for, found checkpoint_1_50.pt, "),
        ("update", 1, 9, "1 update checkpoints up to 9 asked for, found none among checkpoint1.pt"),
    ],
)
def test_fewer_than_asked_for(unit, number, bound, message, folder):
    with pytest.raises(ValueError, match=re.escape(f"{folder}: {message}")):
        last(folder, unit, number, bound)


def test_a_long_list_is_shortened(tmp_path):
    for i in range(1, 31):
        (tmp_path / f"checkpoint{i}.pt").touch()
    with pytest.raises(ValueError, match=r"checkpoint3.pt, \.\.\. 30 in all \.\.\., checkpoint30"):
        last(tmp_path, "epoch", 40)


def save_scored(folder: Path, metric: str, *scores: str, **more) -> list[Path]:
    paths = [folder / f"checkpoint.best_{metric}_{score}.pt" for score in scores]
    for path in paths:
        torch.save({"model": {}} | more, path)
    return paths


@pytest.mark.parametrize(
    "maximize, expected", [(False, ["9.1", "10.05"]), (True, ["30.2", "10.05"])]
)
@pytest.mark.parametrize("kind", ["cfg", "args"])
def test_the_best_as_the_training_run_saw_it(kind, maximize, expected, tmp_path):
    told = {"maximize_best_checkpoint_metric": maximize}
    more = {"cfg": {"checkpoint": told}} if kind == "cfg" else {"args": Namespace(**told)}
    save_scored(tmp_path, "my_bleu", "10.05", "30.2", "9.1", **more)
    (tmp_path / "checkpoint_best.pt").touch()
    found = best(scored(tmp_path), 2)
    assert [path.name for path in found] == [f"checkpoint.best_my_bleu_{s}.pt" for s in expected]


def test_the_best_cannot_be_told(tmp_path):
    losses, scores = save_scored(tmp_path, "loss", "3.1", "2"), save_scored(tmp_path, "bleu", "30")
    with pytest.raises(ValueError, match="3 checkpoints with a score asked for, found .*loss_3.1"):
        best(losses, 3)
    with pytest.raises(ValueError, match="scores of bleu and loss do not compare"):
        best(losses + scores, 1)
    with pytest.raises(ValueError, match="checkpoint1.pt has no score in its name"):
        best([tmp_path / "checkpoint1.pt", *losses], 1)


class Foreign:
    """Nothing a fairseq checkpoint holds."""


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path):
    torch.save({"model": {"w": torch.zeros(9999)}}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    parts = {f"cut{n}": whole[: n * len(whole) // 10] for n in range(1, 10)}
    for name, content in (parts | {"text": b"hello\n" * 99, "empty": b""}).items():
        (tmp_path / f"{name}.pt").write_bytes(content)
    others = {
        "list": [1],
        "weights": {"w": torch.zeros(1)},
        "foreign": {"model": {}, "x": Foreign()},
    }
    for name, content in others.items():
        torch.save(content, tmp_path / f"{name}.pt")
    paths = sorted(set(tmp_path.iterdir()) - {tmp_path / "whole.pt"})
    assert len(paths) == 14
    for path in paths:
        with pytest.raises(ValueError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path} ") and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="holds a test_checkpoint_files.Foreign, which the safe"):
        read(tmp_path / "foreign.pt")
    with pytest.raises(FileNotFoundError, match="nowhere.pt"):
        read(tmp_path / "nowhere.pt")


def test_a_checkpoint_is_read_as_it_was_saved(tmp_path):
    state = {
        "model": {"w": torch.ones(2)},
        "cfg": {"a": 1},
        "optimizer_history": [{"num_updates": 7}],
    }
    torch.save(state, tmp_path / "m.pt")
    torch.testing.assert_close(read(tmp_path / "m.pt"), state)
    assert updates(state) == 7 and updates({"model": {}}) == 0
