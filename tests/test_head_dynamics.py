"""The file of importance in the course of training."""

import json

import pytest
import torch
from conftest import dictionary, parse_model, stub_task
from fairseq.models import build_model

from lite_transformer_plugin.heads import parse_heads
from lite_transformer_plugin.heads.dynamics import SUMS, Record, read_lines, write_line
from lite_transformer_plugin.heads.removal import remove_heads_

SMALL = ["--arch", "transformer", "--encoder-layers", "1", "--decoder-layers", "1"]
SMALL += ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]


@pytest.fixture
def model():
    """Heads E:1:1-2, A:1:1 and no more."""
    model = build_model(parse_model(*SMALL), stub_task(dictionary()))
    remove_heads_(model, parse_heads("A:1:2 D:1:1,2"))
    return model


def line(updates: int, split: str = "valid", **more) -> dict:
    return {"updates": updates, "split": split, "importance": {}} | more


def lines(path) -> list[tuple[int, str]]:
    return [(found["updates"], found["split"]) for found in read_lines(path)]


def test_sums_of_batches_become_a_line(model, tmp_path):
    path = tmp_path / "saved" / "importance.jsonl"
    record = Record(path, model, "token")
    record.begin(3, ["valid", "other"])
    record.add([{"loss": 1.0, SUMS: torch.tensor([1.0, 2.0, 4.0, 3.0, 8.0])}, {"loss": 2.0}])
    record.add([{SUMS: torch.tensor([2.0, 3.0, 6.0, 5.0, 2.0])}])
    record.end(50, parse_heads("E:1:2"))
    record.add([{SUMS: torch.ones(5)}])
    record.end(50, [])
    first, second = read_lines(path)
    assert first == {
        "epoch": 3,
        "updates": 50,
        "split": "valid",
        "unit": "token",
        "normalised": False,
        "masked": "E:1:2",
        "importance": {"E:1:1": 0.3, "E:1:2": 0.5, "A:1:1": 0.8},
    }
    assert second["split"] == "other" and set(second["importance"].values()) == {1.0}


def test_what_is_not_finite_has_no_line(model, tmp_path, caplog):
    record = Record(tmp_path / "importance.jsonl", model, "token")
    record.begin(1, ["valid"])
    record.add([{SUMS: torch.tensor([1.0, float("nan"), 4.0, 3.0, 8.0])}])
    record.end(50, [])
    assert not list(tmp_path.iterdir()) and "importance on valid is not finite" in caplog.text


def test_only_one_process_writes(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = Record(None, model, "token")
    record.begin(1, ["valid"])
    record.add([{SUMS: torch.ones(5)}])
    record.end(50, [])
    assert not list(tmp_path.iterdir())


def test_a_training_that_has_gone_back_writes_its_lines_anew(tmp_path):
    path = tmp_path / "importance.jsonl"
    for updates in (0, 10, 20, 30):
        write_line(path, line(updates))
        write_line(path, line(updates, "other"))
    write_line(path, line(20, epoch=2))
    assert lines(path) == [
        (0, "valid"),
        (0, "other"),
        (10, "valid"),
        (10, "other"),
        (20, "other"),
        (20, "valid"),
    ]
    write_line(path, line(20, "other"))
    assert lines(path)[-2:] == [(20, "valid"), (20, "other")]
    write_line(path, line(0))
    assert lines(path) == [(0, "other"), (0, "valid")]


@pytest.mark.parametrize("text", ["{", "3", '{"updates": 1}', "null"])
def test_a_foreign_line_is_named(tmp_path, text):
    path = tmp_path / "importance.jsonl"
    path.write_text(json.dumps(line(1)) + "\n" + text + "\n")
    with pytest.raises(ValueError, match="importance.jsonl, line 2, is no importance of heads"):
        read_lines(path)
