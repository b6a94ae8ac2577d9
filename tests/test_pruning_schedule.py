"""Pruning while training: which share at which update, which heads, and whole trainings."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import dictionary, parse_model, randomise, stub_task
from fairseq.models import build_model
from stock import LAST, NO_VALIDATION, generate, make_data, train
from test_commands import MODEL, TRAIN

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import format_heads, list_heads, parse_heads
from lite_transformer_plugin.heads.closed import closed_heads
from lite_transformer_plugin.heads.schedule import GradualPruning, Schedule

SIZES = [*MODEL[2:], "--encoder-attention-heads=4", "--decoder-attention-heads=4"]

# --- how many -------------------------------------------------------------------------------------


def test_equal_steps_at_equal_distances():
    schedule = Schedule(start=100, end=400, steps=4, share=0.6)
    assert schedule.updates() == [100, 200, 300, 400]
    shares = [schedule.share_at(update) for update in (0, 99, 100, 199, 200, 399, 400, 10_000)]
    assert shares == pytest.approx([0, 0, 0.15, 0.15, 0.3, 0.45, 0.6, 0.6])


@pytest.mark.parametrize("start, end, steps", [(0, 9, 10), (7, 9, 3), (3, 100, 13), (5, 5, 1)])
def test_every_step_has_its_own_update(start, end, steps):
    updates = Schedule(start, end, steps, 1.0).updates()
    assert len(set(updates)) == steps and updates[-1] == end
    assert updates[0] == start or steps == 1


def test_a_single_step_is_taken_at_the_end():
    schedule = Schedule(start=10, end=20, steps=1, share=0.5)
    assert [schedule.share_at(update) for update in (10, 19, 20)] == [0, 0, 0.5]


@pytest.mark.parametrize(
    "start, end, steps, message",
    [
        (20, 10, 2, "would end at update 10, before its start, 20"),
        (-1, 10, 2, "cannot start before update -1"),
        (0, 10, 0, "at least one step, not 0"),
        (0, 9, 11, "11 steps of pruning do not fit between the updates 0 and 9"),
    ],
)
def test_steps_that_do_not_fit(start, end, steps, message):
    with pytest.raises(ValueError, match=message):
        Schedule(start, end, steps, 0.5)


# --- which ----------------------------------------------------------------------------------------


def model_of() -> torch.nn.Module:
    """Eight heads: two layers of decoder self-attention, two heads each, and as many of E and A."""
    words = ["--arch", "transformer", "--encoder-layers", "1", "--decoder-layers", "2"]
    words += ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]
    return randomise(build_model(parse_model(*words), stub_task(dictionary())))


def ascending(model) -> dict:
    return {head: float(i) for i, head in enumerate(list_heads(model))}


def test_heads_go_by_what_is_measured_before_each_step():
    model = model_of()
    pruning = GradualPruning(model, Schedule(1, 3, 2, 0.4), "EAD")
    scores, asked = ascending(model), []

    def measure():
        asked.append(format_heads(pruning.closed))
        return {head: 0.0 if head in pruning.closed else score for head, score in scores.items()}

    assert not pruning.before_update(0, measure) and not asked
    assert pruning.before_update(1, measure) and pruning.closed == parse_heads("E:1:1,2")
    assert not pruning.before_update(2, measure)
    scores[parse_heads("D:2:2")[0]] = -1.0  # it has lost its importance by now
    scores[parse_heads("E:1:1")[0]] = 99.0  # but what is gone does not come back
    assert pruning.before_update(3, measure)
    assert pruning.closed == parse_heads("E:1:1,2 A:1:1 D:2:2")
    assert not pruning.before_update(4, measure)
    assert asked == ["", "E:1:1,2"]


def test_parts_and_heads_left_in_each_layer():
    model = model_of()
    pruning = GradualPruning(model, Schedule(0, 0, 1, 0.5), "D", minimum=1)
    pruning.before_update(0, lambda: ascending(model))
    assert pruning.closed == parse_heads("D:1:1 D:2:1")
    with pytest.raises(ValueError, match="the largest share is 0.5"):
        GradualPruning(model, Schedule(0, 0, 1, 0.75), "D", minimum=1)


def test_it_goes_on_where_the_weights_say():
    model = model_of()
    first = GradualPruning(model, Schedule(0, 4, 2, 0.4), "EAD")
    first.before_update(0, lambda: ascending(model))
    resumed = model_of()
    resumed.load_state_dict(model.state_dict())
    again = GradualPruning(resumed, first.schedule, "EAD")
    assert again.before_update(1, pytest.fail)  # nothing to measure, but two heads to mask
    assert again.closed == first.closed == parse_heads("E:1:1,2")
    assert again.before_update(4, lambda: ascending(resumed))
    assert again.closed == parse_heads("E:1:1,2 A:1:1,2")


# --- whole trainings ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("schedule"))


def run(data: Path, save_dir: Path, *words, arch: str = "transformer") -> None:
    how = ["--arch", arch, *SIZES, *TRAIN[len(MODEL) :], "--num-workers", "0"]
    train(data, save_dir, "--task", "prune_heads", *words, how=how)


PRUNE = ["--prune-ratio", 0.5, "--prune-start", 1, "--prune-end", 5, "--prune-steps", 3]
SOME = ["--importance-sentences", 20, NO_VALIDATION]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """Six updates with checkpoints of each: heads go after 1, 3 and 5 of them."""
    folder = tmp_path_factory.mktemp("whole")
    run(data, folder, *PRUNE, *SOME, "--max-update", 6, "--save-interval-updates", 1)
    return folder


def closed_in(path: Path) -> list:
    return closed_heads(build.checkpoint(path)[0])


def checkpoints(folder: Path) -> list[Path]:
    """In the order of updates; an epoch has three."""
    names = ["checkpoint_1_1", "checkpoint_1_2", "checkpoint1", "checkpoint_2_4", "checkpoint_2_5"]
    return [folder / f"{name}.pt" for name in names] + [folder / LAST]


def test_checkpoints_have_more_and_more_heads_closed(whole):
    paths = [path for path in checkpoints(whole) if path.exists()]
    closed = [closed_in(path) for path in paths]
    assert [len(heads) for heads in closed] == [0, 4, 8, 8, 12]
    for fewer, more in zip(closed, closed[1:], strict=False):
        assert set(fewer) <= set(more)


@pytest.mark.parametrize("name", ["checkpoint_1_1.pt", "checkpoint_1_2.pt"])
def test_a_resumed_training_is_the_uninterrupted_one(data, whole, tmp_path, name):
    """From the first epoch: in later ones stock fairseq cuts batches anew when it resumes."""
    shutil.copy(whole / name, tmp_path / LAST)
    run(data, tmp_path, *PRUNE, *SOME, "--max-update", 6)
    found, expected = torch.load(tmp_path / LAST), torch.load(whole / LAST)
    assert found["optimizer_history"][-1] == expected["optimizer_history"][-1]
    for key, value in expected["model"].items():
        assert torch.equal(found["model"][key], value), key


def test_what_is_closed_is_closed_in_stock_commands(data, whole, capsys):
    """Telling generate to mask the heads, too, changes nothing."""
    translations = []
    mask = ["--task", "prune_heads", "--mask-heads", format_heads(closed_in(whole / LAST))]
    for words in ([], mask):
        capsys.readouterr()
        generate(data, whole / LAST, "--num-workers", "0", *words)
        out = capsys.readouterr().out.splitlines()
        translations.append([line for line in out if line.startswith(("H-", "P-"))])
    assert translations[0] == translations[1] and len(translations[0]) == 14


def test_other_criteria_and_architectures(data, tmp_path):
    words = ["--criterion", "cross_entropy", "--prune-ratio", 0.3, "--prune-end", 1]
    words += ["--prune-steps", 2, "--head-parts", "E,A", "--min-heads-per-layer", 2]
    how = ["--arch", "lite_transformer", *SIZES, "--optimizer", "adam", "--batch-size", "16"]
    how += ["--cpu", "--no-epoch-checkpoints", "--num-workers", "0", "--task", "prune_heads"]
    train(data, tmp_path, *words, *SOME, "--max-update", 2, how=how)
    closed = closed_in(tmp_path / LAST)
    assert len(closed) == 5 and {head.part for head in closed} <= {"E", "A"}


# --- bad input ------------------------------------------------------------------------------------

RATIO = ["--prune-ratio", "0.5"]
BAD = {
    (
        *RATIO,
        "--prune-start",
        "9",
        "--prune-end",
        "5",
    ): "would end at update 5, before its start, 9",
    (*RATIO, "--prune-start", "9"): "--prune-start goes with --prune-end: give it, too",
    (*RATIO, "--importance-sentences", "9"): "--importance-sentences goes with --prune-end",
    ("--prune-end", "9"): "--prune-end goes with --prune-ratio: give it, too",
    (*RATIO, "--prune-end", "9", "--prune-steps", "0"): "at least one step, not 0",
    (*RATIO, "--prune-end", "5"): "10 steps of pruning do not fit between the updates 0 and 5",
    (*RATIO, "--prune-end", "9", "--head-importance", "f.json"): "--head-importance masks heads at",
    (*RATIO, "--prune-end", "9", "--rescale-heads"): "--rescale-heads does not go with --prune-end",
    (*RATIO, "--prune-end", "9", "--importance-sentences", "0"): r"\(0\) must be at least 1",
    (*RATIO, "--prune-end", "9", "--mask-heads", "E:1:1"): "either --prune-ratio or --mask-heads",
    ("--prune-ratio", "2", "--prune-end", "9"): "must be between 0 and 1",
    (*RATIO, "--prune-end", "9", "--min-heads-per-layer", "3"): "the largest share is 0.25",
}


@pytest.mark.parametrize("words, message", BAD.items(), ids=map(" ".join, BAD))
def test_flags_that_do_not_fit_stop_before_training(data, tmp_path, words, message):
    with pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\Z"):
        run(data, tmp_path, *words, "--max-update", 1)
    assert not list(tmp_path.iterdir())
