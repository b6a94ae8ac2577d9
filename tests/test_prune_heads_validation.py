"""fairseq-validate masks what `--task prune_heads` tells it; no command drops a mask silently."""

import shutil
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from masked_checkpoints import (
    ALL,
    HEADS,
    WORKERS,
    change,
    load_as_validated,
    logits,
    make_legacy,
    make_work,
    output_of,
    refused,
    told,
    train_masked,
    validate,
    without,
    write_importance,
)
from stock import LAST, generate, interactive
from torch import Tensor
from torch.testing import assert_close


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


@pytest.fixture
def output(work):
    return partial(output_of, work / "data")


@pytest.fixture
def trained(tmp_path_factory) -> Path:
    """After updates under a mask."""
    return train_masked(tmp_path_factory.getbasetemp(), "transformer") / LAST


@pytest.fixture
def legacy(tmp_path_factory) -> Path:
    return make_legacy(tmp_path_factory.getbasetemp())


# --- validation -----------------------------------------------------------------------------------


def overrides(**task) -> list[str]:
    return ["--task", "translation", "--model-overrides", str({"task": task})]


WAYS = {
    "flags": told("--mask-heads", HEADS),
    "overrides": overrides(_name="prune_heads", mask_heads=HEADS),
    "flags and overrides": told("--model-overrides", str({"mask_heads": HEADS})),
}


@pytest.fixture(scope="module")
def elsewhere(work, tmp_path_factory) -> Path:
    """The data are not where they were in training."""
    return shutil.copytree(work / "data", tmp_path_factory.mktemp("elsewhere") / "data")


def test_validate(work, elsewhere):
    path = work / "transformer" / LAST
    expected = validate(work / "data", without(path, HEADS), "--task", "translation")
    assert expected != validate(work / "data", path, "--task", "translation")
    for way in WAYS.values():
        assert_close(validate(elsewhere, path, *way), expected)


def test_validate_a_checkpoint_of_old(work, legacy, output):
    expected = output(work / "transformer" / LAST, mask_heads=HEADS)
    flags = {"task": "prune_heads", "mask_heads": HEADS}
    for given in (flags, {"task": {"_name": "prune_heads", "mask_heads": HEADS}}):
        assert_close(logits(load_as_validated(legacy, **given)), expected)


def test_validate_takes_every_option(work, tmp_path):
    path = work / "transformer" / LAST
    file = write_importance(tmp_path, {head: i for i, head in enumerate(ALL)})
    share = ["--prune-ratio", ".25", "--head-importance", file, "--head-parts", "D"]
    least = ["--rescale-heads", "--min-heads-per-layer", "3"]
    factors = dict.fromkeys(ALL[16:], 4 / 3) | {ALL[16]: 0.0, ALL[20]: 0.0}
    expected = validate(work / "data", change(path, factors), "--task", "translation")
    assert_close(validate(work / "data", path, *told(*share, *least)), expected)


def test_validation_masks_as_in_training_unless_it_is_told(trained, output):
    def as_validated(**overrides) -> Tensor:
        return logits(load_as_validated(path, **overrides))

    path = trained
    for overrides in ({}, {"task": "translation"}, {"task": "prune_heads"}):
        assert_close(as_validated(**overrides), output(path, mask_heads=HEADS))
    kept = output(path, keep_heads="E:1:1")
    assert_close(as_validated(keep_heads="E:1:1"), kept)
    assert_close(as_validated(task="prune_heads", keep_heads="E:1:1"), kept)
    assert_close(as_validated(task={"keep_heads": "E:1:1"}), kept)
    assert_close(as_validated(task={"_name": "translation"}), output(path))
    assert not torch.allclose(kept, output(path, mask_heads=HEADS))


# --- a mask is never dropped without a word -------------------------------------------------------

DROPPED = [
    {"task": {"_name": "prune_heads", "mask_heads": HEADS}},
    {"task": {"mask_heads": HEADS}},
    {"mask_heads": HEADS},
    {"rescale_heads": True},
]


@pytest.mark.parametrize("given", DROPPED, ids=str)
@pytest.mark.parametrize("name", ["translation", "prune_heads"])
def test_overrides_do_not_reach_a_task_of_the_command_line(work, given, name):
    task = tasks.setup_task(Namespace(task=name, data=str(work / "data")))
    with refused("overrides do not reach the task of this command"):
        checkpoint_utils.load_model_ensemble([str(work / "transformer" / LAST)], given, task)


@pytest.mark.parametrize("command", [generate, interactive])
def test_such_overrides_stop_the_command(work, command):
    words = [*WORKERS, "-s", "de", "-t", "en", "--model-overrides", str(DROPPED[0])]
    with refused("overrides do not reach the task of this command"):
        command(work / "data", work / "transformer" / LAST, *words)


@pytest.mark.parametrize("given", DROPPED[1:], ids=str)
def test_an_option_needs_its_task(work, given):
    for with_task in (given, {"task": "translation"} | given):
        with refused("task translation has no option '(mask|rescale)_heads'"):
            load_as_validated(work / "transformer" / LAST, **with_task)


def test_an_option_needs_its_task_in_a_checkpoint_of_old(legacy):
    with refused("task translation has no option 'mask_heads'.* --task prune_heads"):
        load_as_validated(legacy, mask_heads=HEADS)


def test_a_misspelt_option(work, trained):
    with refused("the task prune_heads has no option 'mask_head'"):
        path = work / "transformer" / LAST
        load_as_validated(path, task={"_name": "prune_heads", "mask_head": HEADS})
    with refused("the task prune_heads has no option 'mask_head'"):
        load_as_validated(trained, task={"mask_head": HEADS})
