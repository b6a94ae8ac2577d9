"""Flags of `--task prune_heads` that do not fit stop every command, with one line."""

import argparse
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
from fairseq import tasks
from masked_checkpoints import (
    ALL,
    HEADS,
    make_work,
    output_of,
    refused,
    told,
    write_importance,
)
from stock import LAST, PLUGIN, call

from lite_transformer_plugin.heads import Head
from lite_transformer_plugin.tasks.prune_heads import PruneHeadsConfig, PruneHeadsTask


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


@pytest.fixture
def output(work):
    return partial(output_of, work / "data")


SHARE = ("--prune-ratio", "0.5")
FILE = ("--head-importance", "importance.json")
BAD_FLAGS = {
    ("--mask-heads", ""): "--mask-heads is empty: a mask must name at least one head",
    ("--keep-heads", " "): "--keep-heads is empty",
    ("--mask-heads", "E:1"): "--mask-heads: 'E:1' is no head",
    ("--keep-heads", "X:1:1"): "--keep-heads: 'X:1:1': there is no part 'X'",
    ("--mask-heads", HEADS, "--keep-heads", "E:1:1-3 D:1:4"): "E:1:3 D:1:4 is in both",
    ("--rescale-heads",): "--rescale-heads needs --mask-heads, --keep-heads or --prune-ratio",
    FILE: "--head-importance goes with --prune-ratio",
    ("--min-heads-per-layer", "0"): "--min-heads-per-layer goes with --prune-ratio",
    ("--mask-heads", "E:1:1", "--head-parts", "E"): "--head-parts goes with --prune-ratio",
    SHARE: "--prune-ratio needs --head-importance FILE",
    (*SHARE, *FILE, "--mask-heads", "E:1:1"): "give either --prune-ratio or --mask-heads",
    (*SHARE, *FILE, "--keep-heads", ""): "give either --prune-ratio or --mask-heads",
    ("--prune-ratio", "1.5", *FILE): r"--prune-ratio \(1.5\) must be between 0 and 1",
    ("--prune-ratio", "-0.1", *FILE): r"--prune-ratio \(-0.1\) must be between 0 and 1",
    ("--prune-ratio", "nan", *FILE): r"--prune-ratio \(nan\) must be between 0 and 1",
    (*SHARE, *FILE, "--min-heads-per-layer", "-1"): r"--min-heads-per-layer \(-1\) must not",
    (*SHARE, *FILE, "--head-parts", "E,B"): "--head-parts: there is no part 'B'",
    (*SHARE, *FILE, "--head-parts", ""): "--head-parts: there is no part ''",
    (*SHARE, "--head-importance", "none.json"): "none.json: No such file",
    (*SHARE, "--head-importance", "."): "--head-importance .: Is a directory",
    (*SHARE, "--head-importance", "text.json"): "text.json is not JSON",
    (*SHARE, "--head-importance", "other.json"): "other.json holds no list of importance",
}


def flags_of(words) -> dict:
    """What a command makes of them."""
    parser = argparse.ArgumentParser()
    PruneHeadsTask.add_args(parser)
    return vars(parser.parse_args(["no-data", *words]))


@pytest.mark.parametrize("words, message", BAD_FLAGS.items(), ids=map(" ".join, BAD_FLAGS))
def test_flags_that_do_not_fit_stop_before_the_data(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_importance(tmp_path, dict.fromkeys(ALL, 0.5))
    Path("text.json").write_text("head,importance\n")
    Path("other.json").write_text('{"importance": {"E:1:1": 0.5}}')
    with refused(message):
        tasks.setup_task(Namespace(task="prune_heads", **flags_of(words)))


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_flags_that_do_not_fit_stop_every_command(work, tmp_path, command):
    path = work / "transformer" / LAST
    words = ["--cpu", "--batch-size", 1, *told("--mask-heads", "", "--user-dir", PLUGIN)]
    own = {"train": ["--arch", "transformer", "--save-dir", tmp_path, "--optimizer", "adam"]}
    with refused("--mask-heads is empty"):
        call(command, work / "data", *words, *own.get(command, ["--path", path]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head, has", [("E:3:1", "in layers 1,2"), ("D:2:5", "has heads 1-4")])
@pytest.mark.parametrize("flag", ["mask_heads", "keep_heads"])
def test_heads_that_the_model_has_not(work, output, flag, head, has):
    with refused(f"{head}: .*{has}"):
        output(work / "transformer" / LAST, **{flag: head})


OTHERS = {
    "importance file of another model: .* E:1:1": ALL[1:],
    "importance file of another model: E:3:1": [*ALL, Head("E", 3, 1)],
}


@pytest.mark.parametrize("message, heads", OTHERS.items())
def test_importance_of_another_model(work, output, tmp_path, heads, message):
    file = write_importance(tmp_path, dict.fromkeys(heads, 0.5))
    with refused(f"importance.json: {message}"):
        output(work / "lite_transformer" / LAST, prune_ratio=0.5, head_importance=file)


def test_too_many_heads_a_layer(work, output, tmp_path):
    file = write_importance(tmp_path, dict.fromkeys(ALL, 0.5))
    flags = dict(prune_ratio=0.5, min_heads_per_layer=3, head_importance=file)
    with refused("the largest share is 0.25"):
        output(work / "lite_transformer" / LAST, **flags)


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_the_flags_need_the_task(work, command, capsys):
    words = ["--user-dir", PLUGIN, "--task", "translation", "--mask-heads", HEADS]
    words += ["--arch", "transformer"] if command == "train" else ["--path", "no-checkpoint.pt"]
    with pytest.raises(SystemExit):
        call(command, work / "data", *words)
    assert "unrecognized arguments: --mask-heads" in capsys.readouterr().err


def test_eval_lm_does_not_translate(work):
    path = work / "transformer" / LAST
    words = [work / "data", "--user-dir", PLUGIN, "--path", path, "--cpu"]
    with pytest.raises(AttributeError, match="PruneHeadsTask.*eval_lm_dataloader"):
        call("eval_lm", *words, *told("--mask-heads", HEADS))


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_help_lists_the_flags(command, capsys):
    with pytest.raises(SystemExit):
        call(command, "--user-dir", PLUGIN, *told("--help"))
    shown = "".join(capsys.readouterr().out.split())
    for name in set(vars(PruneHeadsConfig)["__annotations__"]):
        help_text = PruneHeadsConfig.__dataclass_fields__[name].metadata["help"]
        assert "--" + name.replace("_", "-") in shown
        assert "".join(help_text.split()) in shown
