"""A checkpoint that was trained under a mask and has lost heads since is used like any other."""

import logging
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch
from masked_checkpoints import (
    ALL,
    HEADS,
    WORKERS,
    load_as_validated,
    logits,
    make_work,
    output_of,
    train_masked,
    validate,
    write_importance,
)
from stock import LAST, NO_VALIDATION, PLUGIN, call
from torch.testing import assert_close

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli.fine_tuning import fine_tuning_command
from lite_transformer_plugin.heads import parse_heads
from lite_transformer_plugin.models.pruned import prune_checkpoint
from lite_transformer_plugin.tasks.masks_left import DEFAULTS, masks_left

CHOOSING = ["--mask-heads", "--keep-heads", "--prune-ratio", "--head-importance", "--rescale-heads"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Under a mask of HEADS, none of which has learnt anything."""
    return train_masked(tmp_path_factory.getbasetemp(), "transformer") / LAST


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp()) / "data"


@pytest.fixture
def output(data):
    return partial(output_of, data)


def prune(path: Path, heads: str, folder: Path, name: str = "pruned.pt") -> Path:
    model, _ = build.checkpoint(path)
    state = prune_checkpoint(checkpoint_files.read(path), parse_heads(heads), model)
    torch.save(state, folder / name)
    return folder / name


def printed_line(path: Path, data: Path) -> list[str]:
    line = fine_tuning_command(path, str(data))
    return shlex.split(line.replace("--user-dir lite_transformer_plugin", f"--user-dir {PLUGIN}"))


# --- commands -------------------------------------------------------------------------------------


def test_without_the_masked_heads_nothing_is_masked(data, trained, output, tmp_path):
    path = prune(trained, HEADS, tmp_path)
    assert not set(printed_line(path, data)) & {*CHOOSING}
    expected = output(trained, mask_heads=HEADS)
    assert_close(logits(load_as_validated(path)), expected)
    assert not torch.allclose(output(trained), expected)
    losses = validate(data, trained, "--task", "translation")
    assert_close(validate(data, path, "--task", "translation"), losses, rtol=0, atol=1e-3)


def test_what_is_left_of_a_mask_stays_masked(data, trained, output, tmp_path):
    path = prune(trained, "E:1:3 A:2:1 D:2:4", tmp_path)
    line = printed_line(path, data)
    assert line[line.index("--mask-heads") + 1] == "A:2:2 D:1:4"
    assert_close(logits(load_as_validated(path)), output(trained, mask_heads=f"{HEADS} D:2:4"))


@pytest.mark.parametrize("gone", [HEADS, "E:1:3 A:2:1 D:2:4"])
def test_the_printed_line_trains_on(data, trained, tmp_path, gone):
    path = prune(trained, gone, tmp_path)
    command, *words = printed_line(path, data)
    assert command == "fairseq-train"
    words += ["--save-dir", tmp_path / "on", "--max-update", 1, "--cpu", NO_VALIDATION, *WORKERS]
    call("train", *words)
    state = torch.load(tmp_path / "on" / LAST)
    assert state["optimizer_history"][-1]["num_updates"] == 1
    assert state["cfg"]["task"]["_name"] == "prune_heads"


# --- every way to mask ----------------------------------------------------------------------------

SHARE = dict(prune_ratio=0.25, head_importance="importance.json")
WAYS = {
    "some of a mask": (dict(mask_heads="E:1:1,2 D:1:4"), "E:1:1 A:1:1", "E:1:2 D:1:4"),
    "rescaled": (dict(mask_heads="E:1:1,2", rescale_heads=True), "E:1:1", "E:1:2"),
    "all of a mask": (dict(mask_heads="E:1:1,2", rescale_heads=True), "E:1:1-4", None),
    "all but the kept": (dict(keep_heads="E:1:3"), "E:1:1,2,4", None),
    "the kept": (dict(keep_heads="E:1:3"), "E:1:3", "E:1:1,2,4"),
    "kept and masked": (dict(keep_heads="E:1:3,4", mask_heads="D:1:1"), "E:1:1,4", "E:1:2 D:1:1"),
    "some of a share": (SHARE, "E:1:1-4", "E:2:1,2"),
    "of parts": (SHARE | dict(head_parts="A", min_heads_per_layer=3), "A:1:1", "A:2:1"),
    "a share of none": (SHARE | dict(prune_ratio=0.0), "E:1:1", None),
    "a schedule": (dict(prune_ratio=0.5, prune_end=100, prune_steps=5), "E:1:1", None),
}


@pytest.fixture(scope="module")
def model(data):
    return build.checkpoint(data.parent / "transformer" / LAST)[0]


@pytest.mark.parametrize("options, gone, left", WAYS.values(), ids=WAYS)
def test_heads_that_are_left_are_named(model, tmp_path, monkeypatch, options, gone, left):
    monkeypatch.chdir(tmp_path)
    write_importance(tmp_path, {head: i for i, head in enumerate(ALL)})
    found = masks_left({"_name": "prune_heads", **options}, parse_heads(gone), model)
    rescaled = options.get("rescale_heads", False) and left is not None
    assert found == DEFAULTS | {"mask_heads": left, "rescale_heads": rescaled}
    assert set(options) <= set(found) and "data" not in found


def test_other_tasks_and_no_mask_are_left_alone(model):
    gone = parse_heads("E:1:1")
    for task in ({}, {"_name": "translation", "mask_heads": "E:1:1"}, {"_name": "prune_heads"}):
        assert masks_left(task, gone, model) == {}


def test_a_share_whose_file_is_gone_is_told(model, caplog):
    task = {"_name": "prune_heads", "prune_ratio": 0.5, "head_importance": "gone.json"}
    found = masks_left(task, parse_heads("E:1:1"), model)
    assert found == DEFAULTS
    [message] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert message == (
        "the pruned model has none of the masks of its training: --head-importance gone.json: "
        "No such file or directory"
    )


def test_pruning_composes(trained, tmp_path):
    twice = prune(prune(trained, "E:1:3 A:2:1", tmp_path), "A:2:2", tmp_path, "twice.pt")
    assert torch.load(twice)["cfg"]["task"]["mask_heads"] == "D:1:4"
    assert torch.load(trained)["cfg"]["task"]["mask_heads"] == HEADS
