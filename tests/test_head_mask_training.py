"""Whole trainings with `--criterion head_mask`: files, checkpoints, restarts, processes."""

import math
import re
import shutil
import socket
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from fairseq import checkpoint_utils, tasks
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed.utils import get_global_group
from masked_checkpoints import ALL, WORKERS, out_proj, train_arch, validate
from stock import LAST, NO_VALIDATION, generate, make_data
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import format_heads, importance, list_heads, parse_heads
from lite_transformer_plugin.heads.closed import closed_heads
from lite_transformer_plugin.heads.dynamics import FILE, read_lines
from lite_transformer_plugin.tasks import prune_heads
from lite_transformer_plugin.tasks.prune_heads import PruneHeadsTask
from lite_transformer_plugin.tasks.sentences import batches

TOKENS = 65  # in the target sentences of the split valid
MASK = ["--task", "prune_heads", "--criterion", "head_mask"]
# gates at the edge of closing, which move fast: some close within a few updates
GATES = [*MASK, "--head-l0", 0.1, "--head-l0-init", -2.3, "--head-l0-speed", 30]
TRAININGS = {
    "learned": [*GATES, "--head-l0-init", -2.39],
    "schedule": [*MASK, "--prune-ratio", 0.5, "--prune-end", 1, "--prune-steps", 2],
}
EVERY = ["--validate-interval-updates", 1, "--save-interval-updates", 1]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """data/, and plain/checkpoint_last.pt after three updates."""
    folder = tmp_path_factory.mktemp("mask")
    make_data(folder)
    train_arch(folder / "data", folder / "plain", "transformer", "--max-update", 3)
    return folder


@pytest.fixture
def task(work):
    """With a model loaded, and the validation data."""
    options = dict(data=str(work / "data"), dataset_impl=None, required_seq_len_multiple=1)
    task = tasks.setup_task(Namespace(task="prune_heads", **options))
    [model], _ = checkpoint_utils.load_model_ensemble([str(work / "plain" / LAST)], task=task)
    task.load_dataset("valid")
    assert task.model is model
    return task


def stock_of(task) -> LabelSmoothedCrossEntropyCriterion:
    return LabelSmoothedCrossEntropyCriterion(task, False, 0.1, report_accuracy=True)


# --- whole trainings ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stats() -> list[dict]:
    """What fairseq-train says after each validation of `learned`."""
    return []


@pytest.fixture(scope="module")
def learned(work, tmp_path_factory, stats) -> Path:
    """Gates for six updates from the plain checkpoint, checkpoints and validation at each."""
    folder = tmp_path_factory.mktemp("learned")
    start = ["--finetune-from-model", work / "plain" / LAST]
    with recorded(stats):
        train_arch(work / "data", folder, "transformer", *GATES, *start, *EVERY, "--max-update", 6)
    return folder


@contextmanager
def recorded(stats: list[dict]) -> Iterator[None]:
    stock = PruneHeadsTask.post_validate

    def post_validate(task, model, found, agg):
        stats.append({**found, "dtype": next(model.parameters()).dtype})
        stock(task, model, found, agg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PruneHeadsTask, "post_validate", post_validate)
        yield


def test_gates_close_and_their_heads_are_closed_in_the_checkpoint(learned):
    state = torch.load(learned / LAST)
    extra = state["criterion"]["gates._extra_state"]
    closed = closed_heads(build.checkpoint(learned / LAST)[0])
    assert 0 < len(closed) < 24 and [str(head) for head in closed] == list(extra["columns"])
    assert all(columns.any() for columns in extra["columns"].values())
    assert read_lines(learned / FILE)[-1]["masked"] == format_heads(closed)


def test_the_file_has_a_line_for_each_validation(learned, work):
    lines = read_lines(learned / FILE)
    assert [(line["epoch"], line["updates"]) for line in lines] == [
        (0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)
    ]  # fmt: skip
    assert {line["split"] for line in lines} == {"valid"}
    heads = [str(head) for head in list_heads(build.checkpoint(learned / LAST)[0])]
    assert all(list(line["importance"]) == heads for line in lines)


@pytest.mark.parametrize("line, path", [(0, "plain"), (-1, "learned")])
def test_importance_in_the_file_is_that_of_the_checkpoint(task, learned, work, line, path):
    """At update 0 that of the checkpoint at the start, in the end that of the last."""
    folder = work / "plain" if path == "plain" else learned
    [model], _ = checkpoint_utils.load_model_ensemble([str(folder / LAST)], task=task)
    whole = batches(task, "valid", model)
    expected = importance.measure(model, stock_of(task), whole, normalise=False).scores
    found = read_lines(learned / FILE)[line]
    assert (found["unit"], found["normalised"]) == ("sentence", False)
    expected = {str(head): score for head, score in expected.items()}
    assert found["importance"] == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("last", ["checkpoint_1_1.pt", "checkpoint_1_2.pt"])
def test_a_resumed_training_is_the_uninterrupted_one(work, learned, tmp_path, last):
    """Killed after the end, so that the file has lines that are written anew."""
    shutil.copy(learned / last, tmp_path / LAST)
    shutil.copy(learned / FILE, tmp_path)
    train_arch(work / "data", tmp_path, "transformer", *GATES, *EVERY, "--max-update", 6)
    assert (tmp_path / FILE).read_bytes() == (learned / FILE).read_bytes()
    found, expected = torch.load(tmp_path / LAST), torch.load(learned / LAST)
    for part in ("model", "criterion"):
        for key, value in expected[part].items():
            if torch.is_tensor(value):
                assert torch.equal(found[part][key], value), key
    columns = [state["criterion"]["gates._extra_state"]["columns"] for state in (found, expected)]
    assert columns[0].keys() == columns[1].keys()
    assert all(torch.equal(columns[0][name], columns[1][name]) for name in columns[0])


def test_fairseq_validate_says_what_training_said(work, learned, stats):
    for name in ("translation", "prune_heads"):
        found = validate(work / "data", learned / LAST, "--task", name)
        assert sum(found) / TOKENS / math.log(2) == pytest.approx(stats[-1]["loss"], abs=1e-3)
    state = torch.load(learned / LAST)
    for name, columns in state["criterion"]["gates._extra_state"]["columns"].items():
        out_proj(state["model"], parse_heads(name)[0]).copy_(columns)
    torch.save(state, work / "opened.pt")
    opened = validate(work / "data", work / "opened.pt", "--task", "translation")
    assert abs(sum(opened) - sum(found)) > 0.1


@pytest.mark.parametrize("training", ["learned", "schedule"])
def test_validation_changes_nothing_in_training(work, tmp_path, training):
    words = [*TRAININGS[training], "--prune-end", 3] if training == "schedule" else GATES
    for name, more in (("with", EVERY), ("without", [NO_VALIDATION])):
        folder = tmp_path / name
        train_arch(work / "data", folder, "transformer", *words, *more, "--max-update", 4)
    one, other = (torch.load(tmp_path / name / LAST)["model"] for name in ("with", "without"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert len(read_lines(tmp_path / "with" / FILE)) == 5
    assert not (tmp_path / "without" / FILE).exists()


def test_only_the_first_process_writes_the_file(work, tmp_path, monkeypatch):
    monkeypatch.setattr(prune_heads, "rank_and_world", lambda: (1, 2))
    train_arch(work / "data", tmp_path, "transformer", *MASK, "--max-update", 1)
    assert (tmp_path / LAST).exists() and not (tmp_path / FILE).exists()


def test_a_checkpoint_without_gates_goes_on_from_one_with_them(work, learned, tmp_path):
    """What was closed is open, and starts from zero."""
    start = ["--finetune-from-model", learned / LAST]
    train_arch(work / "data", tmp_path, "transformer", *start, "--max-update", 1)
    assert not closed_heads(build.checkpoint(tmp_path / LAST)[0])


def test_bleu_in_training_is_of_the_open_heads(work, learned, tmp_path, stats, capsys):
    """Gates as they were, and no update that would change anything."""
    shutil.copy(learned / LAST, tmp_path)
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 10}', "--lr", 0]
    words = ["--reset-optimizer", "--reset-meters", "--max-update", 7]
    with recorded(stats):
        train_arch(work / "data", tmp_path, "transformer", *GATES, *bleu, *words)
    capsys.readouterr()
    generate(work / "data", learned / LAST, *WORKERS, "--gen-subset", "valid", "--batch-size", 16)
    [found] = re.findall(r"BLEU4 = ([\d.]+)", capsys.readouterr().out)
    assert stats.pop()["bleu"] == pytest.approx(float(found), abs=0.01)


# --- precision, memory, processes -----------------------------------------------------------------


def test_float16_and_two_splits(work, tmp_path):
    """Checkpoints are float32 all the same: fairseq sees to that."""
    half, stats = ["--fp16", "--fp16-no-flatten-grads", "--valid-subset", "valid,test"], []
    with recorded(stats):
        train_arch(work / "data", tmp_path, "transformer", *GATES, *half, "--max-update", 2)
    assert stats[0]["dtype"] == torch.half
    state = torch.load(tmp_path / LAST)["criterion"]
    gates = torch.cat([value for key, value in state.items() if ".scaled." in key])
    assert gates.isfinite().all() and len(gates.unique()) > 1
    found = [(line["updates"], line["split"]) for line in read_lines(tmp_path / FILE)]
    assert found == [(0, "valid"), (0, "test"), (2, "valid"), (2, "test")]


@pytest.mark.parametrize("training", ["learned", "schedule"])
def test_the_moving_average_has_the_same_heads_closed(work, tmp_path, training):
    words = [*TRAININGS[training], "--store-ema", "--max-update", 2]
    train_arch(work / "data", tmp_path, "transformer", *words)
    state = torch.load(tmp_path / LAST)
    weights, average = state["model"], state["extra_state"]["ema"]
    closed = [head for head in ALL if not out_proj(weights, head).any()]
    assert closed and closed == [head for head in ALL if not out_proj(average, head).any()]
    assert not torch.equal(
        weights["decoder.layers.0.fc1.bias"], average["decoder.layers.0.fc1.bias"]
    )


def test_layers_that_are_run_again_for_their_gradients(work, tmp_path):
    words = [*GATES, "--max-update", 2, "--dropout", 0, NO_VALIDATION]
    for name, more in (("plain", []), ("again", ["--checkpoint-activations"])):
        train_arch(work / "data", tmp_path / name, "transformer", *words, *more)
    plain, again = (torch.load(tmp_path / name / LAST) for name in ("plain", "again"))
    for key, value in plain["criterion"].items():
        if torch.is_tensor(value):
            assert_close(again["criterion"][key], value, rtol=0, atol=1e-6)


PLAIN = ["--optimizer", "sgd", "--lr", 0.1, "--dropout", 0, "--batch-size", 8, "--max-update", 2]


def train_same(folder: Path, where: str, *words) -> None:
    """Gates are drawn without chance: processes have the same noise, batches in a row have not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand_like", lambda like: torch.full_like(like, 0.6))
        for name, training in TRAININGS.items():
            options = [*training, *PLAIN, *words]
            train_arch(folder / "data", folder / where / name, "transformer", *options)


def train_on_one_of_two(rank: int, folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    words = ["--distributed-world-size", 2, "--distributed-backend", "gloo"]
    words += ["--distributed-init-method", f"tcp://127.0.0.1:{port}", "--distributed-no-spawn"]
    train_same(folder, "two", *words, "--ddp-backend", "legacy_ddp", "--distributed-rank", rank)


def train_on_the_other(_, *args) -> None:
    train_on_one_of_two(1, *args)


def test_two_processes_equal_one(work):
    train_same(work, "one", "--update-freq", 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    args = (work, port)
    other = torch.multiprocessing.spawn(train_on_the_other, args, nprocs=1, join=False)
    try:
        train_on_one_of_two(0, *args)
        other.join()
    finally:
        torch.distributed.destroy_process_group()
        vars(get_global_group).pop("_global_group", None)
    for name in TRAININGS:
        one, two = (torch.load(work / where / name / LAST) for where in ("one", "two"))
        assert_close(two["model"], one["model"], rtol=0, atol=1e-6)
        for line, same in zip(
            *(read_lines(work / w / name / FILE) for w in ("one", "two")), strict=True
        ):
            assert same.pop("importance") == pytest.approx(
                line.pop("importance"), rel=1e-4, abs=1e-7
            )
            assert same == line
        assert line["masked"]
    for key, value in torch.load(work / "one/learned" / LAST)["criterion"].items():
        if torch.is_tensor(value):
            found = torch.load(work / "two/learned" / LAST)["criterion"][key]
            assert_close(found, value, rtol=0, atol=1e-6)


def test_gates_of_another_model(work, learned, tmp_path, caplog):
    state = torch.load(learned / LAST)
    state["criterion"]["gates._extra_state"]["heads"]["D:2"] = [1, 2]
    torch.save(state, tmp_path / LAST)
    with pytest.raises(Exception, match="Cannot load model parameters"):
        train_arch(work / "data", tmp_path, "transformer", *GATES, "--max-update", 7)
    assert "gates of another model: there is none for D:2:3" in caplog.text
