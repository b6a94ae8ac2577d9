"""`fairseq-prune-heads --gates-from`: what training has closed is removed, and nothing else."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from masked_checkpoints import ALL, WORKERS, logits, out_proj, train_arch
from stock import LAST, NO_VALIDATION, call, generate, make_data

from lite_transformer_plugin import build
from lite_transformer_plugin.cli.prune_heads import main
from lite_transformer_plugin.heads import format_heads, list_heads
from lite_transformer_plugin.heads.closed import closed_heads

SEARCH = ["--beam", "2", "--max-len-b", "10", "--cpu", "--batch-size", "4"]
TRAININGS = {
    "gates": ["--criterion", "head_mask", "--head-l0", 0.1, "--head-l0-init", -2.39],
    "schedule": ["--prune-ratio", 0.3, "--prune-end", 1, "--prune-steps", 2],
    "open": ["--criterion", "head_mask", "--head-l0", 0.1],
    "plain": [],
}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """data/, and a checkpoint of each training."""
    folder = tmp_path_factory.mktemp("gates")
    make_data(folder)
    for name, words in TRAININGS.items():
        words = ["--task", "prune_heads", *words, "--max-update", 2, NO_VALIDATION]
        train_arch(folder / "data", folder / name, "transformer", *words)
    return folder


def prune(work: Path, results: Path, path: Path, *words) -> int:
    where = ["--path", path, "--results-dir", results]
    return main([str(word) for word in (work / "data", *where, *SEARCH, *words)])


def model_in(path: Path) -> torch.nn.Module:
    return build.checkpoint(path)[0]


@pytest.mark.parametrize("name", ["gates", "schedule"])
def test_closed_heads_are_removed(work, tmp_path, capsys, name):
    path, pruned = work / name / LAST, tmp_path / "results" / "pruned-gates.pt"
    assert prune(work, tmp_path / "results", path, "--gates-from", path) == 0
    before, after = model_in(path), model_in(pruned)
    closed = closed_heads(before)
    assert 0 < len(closed) < 24
    assert list_heads(after) == [head for head in ALL if head not in closed]
    torch.testing.assert_close(logits(after), logits(before))
    curve = json.loads((tmp_path / "results" / "curve.json").read_text())
    assert [row["pruned_heads"] for row in curve["curve"]] == ["", format_heads(closed)]
    assert len({row["bleu"] for row in curve["curve"]}) == 1  # it is as it was
    assert not (tmp_path / "results" / "importance.json").exists()
    generate(work / "data", pruned, *WORKERS)
    out = capsys.readouterr().out
    assert f"heads 24 -> {24 - len(closed)}" in out and "BLEU4" in out
    [line] = [line for line in out.splitlines() if line.startswith("train it on: ")]
    train_on(shlex.split(line.removeprefix("train it on: fairseq-train ")), tmp_path, len(closed))


def train_on(words: list[str], folder: Path, removed: int) -> None:
    """With the task and criterion of its training, but no more gates and no schedule."""
    assert not {"--head-l0", "--prune-ratio", "--prune-end"} & set(words)
    words += ["--save-dir", folder / "on", "--max-update", 1, "--cpu", NO_VALIDATION, *WORKERS]
    call("train", *words)
    assert len(list_heads(model_in(folder / "on" / LAST))) == 24 - removed


def test_heads_of_another_checkpoint_of_the_same_model(work, tmp_path):
    gates, path = work / "gates" / LAST, work / "plain" / LAST
    assert prune(work, tmp_path / "results", path, "--gates-from", gates) == 0
    left = list_heads(model_in(tmp_path / "results" / "pruned-gates.pt"))
    assert set(left) == set(ALL) - set(closed_heads(model_in(gates)))


def test_pruning_by_importance_measures_the_loss_without_its_gates(work, tmp_path):
    """The criterion of the checkpoint needs a task that the command has not."""
    path = work / "gates" / LAST
    words = ["--ratios", "0,0.5", "--save-ratio", "0.5"]
    assert prune(work, tmp_path / "results", path, *words) == 0
    rows = json.loads((tmp_path / "results" / "importance.json").read_text())["importance"]
    closed = {str(head) for head in closed_heads(model_in(path))}
    assert closed == {row["head"] for row in rows if row["importance"] == 0}
    start = ["--arch", "pruned", "--pruned-from", tmp_path / "results" / "pruned-50.pt"]
    start += ["--finetune-from-model", tmp_path / "results" / "pruned-50.pt", "--optimizer", "adam"]
    gates = ["--task", "prune_heads", *TRAININGS["gates"], "--batch-size", 16, "--cpu", *WORKERS]
    where = ["--save-dir", tmp_path / "on", "--max-update", 1, NO_VALIDATION]
    call("train", work / "data", "--user-dir", "lite_transformer_plugin", *start, *gates, *where)
    state = torch.load(tmp_path / "on" / LAST)["criterion"]
    assert (
        sum(v.numel() for k, v in state.items() if ".scaled." in k) == 12
    )  # the gates that are left


# --- bad input ------------------------------------------------------------------------------------


def test_gates_of_another_model(work, tmp_path, capsys):
    path = work / "gates" / LAST
    assert prune(work, tmp_path / "first", path, "--gates-from", path) == 0
    pruned = tmp_path / "first" / "pruned-gates.pt"
    capsys.readouterr()
    for words in ([pruned, "--gates-from", path], [path, "--gates-from", pruned]):
        assert prune(work, tmp_path / "results", *words, "--force") == 2
        assert_one_line(capsys, "gates of another model: see ")


def assert_one_line(capsys, message: str) -> None:
    lines = [x for x in capsys.readouterr().err.splitlines() if "fairseq-prune-heads:" in x]
    assert len(lines) == 1 and message in lines[0]


@pytest.mark.parametrize(
    "name, message",
    [
        ("plain/checkpoint_last.pt", "holds no gates: train it with --criterion head_mask"),
        ("open/checkpoint_last.pt", "all its gates are open, there is nothing to remove"),
        ("none.pt", "there is no such checkpoint"),
        ("data/dict.en.txt", "is not a checkpoint"),
    ],
)
def test_a_checkpoint_without_closed_heads(work, tmp_path, capsys, name, message):
    words = ["--gates-from", work / name]
    assert prune(work, tmp_path / "results", work / "plain" / LAST, *words) == 2
    assert_one_line(capsys, message)


@pytest.mark.parametrize(
    "words",
    [
        ["--save-ratio", "0.4"],
        ["--ratios", "0,0.5"],
        ["--parts", "E"],
        ["--order", "norm"],
        ["--reestimate"],
        ["--min-heads-per-layer", "1"],
        ["--only-importance"],
    ],
    ids=" ".join,
)
def test_nothing_else_chooses_heads(work, tmp_path, capsys, words):
    path = work / "gates" / LAST
    assert prune(work, tmp_path / "results", path, "--gates-from", path, *words) == 2
    assert_one_line(capsys, f"says which heads go: it does not go with {words[0]}")


def test_a_foreign_file_is_not_replaced(work, tmp_path, capsys):
    results, path = tmp_path / "results", work / "gates" / LAST
    results.mkdir()
    (results / "pruned-gates.pt").write_text("mine")
    assert prune(work, results, path, "--gates-from", path) == 2
    assert_one_line(capsys, "pruned-gates.pt exists")
    assert (results / "pruned-gates.pt").read_text() == "mine"


def test_the_columns_of_the_closed_are_zero(work):
    """What all this stands on."""
    state = torch.load(work / "schedule" / LAST)
    closed = [head for head in ALL if not out_proj(state["model"], head).any()]
    assert len(closed) == 8 and closed == closed_heads(model_in(work / "schedule" / LAST))
