"""The printed line trains a pruned model on as it was; its checkpoints need no other file."""

import logging
import shlex
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from pruned_checkpoints import (
    FORMATS,
    HEADS,
    MODELS,
    QUICK,
    data_of,
    entries,
    hypotheses,
    prune,
    prune_every,
    train_every,
)
from stock import LAST, PLUGIN, call

from lite_transformer_plugin import build
from lite_transformer_plugin.cli.fine_tuning import fine_tuning_command
from lite_transformer_plugin.heads import list_heads
from lite_transformer_plugin.models.pruned import model_config


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return data_of(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    return train_every(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> dict[str, Path]:
    return prune_every(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("kind", MODELS)
def test_the_printed_line_trains_on_and_resumes(kind, data, pruned, caplog, capsys):
    """Its checkpoints need no other file."""
    start = prune(pruned[kind], "D:2:1", f"start-{kind}.pt")
    line = fine_tuning_command(start, str(data)).replace("lite_transformer_plugin", PLUGIN)
    command, *words = shlex.split(line)
    saved = data / f"{kind}-on"
    words += ["--cpu", *QUICK, "--save-dir", str(saved), "--no-epoch-checkpoints"]
    assert command == "fairseq-train"
    caplog.set_level(logging.INFO)
    call("train", *words, "--max-update", 2)
    assert any("loading pretrained model from" in r.message for r in caplog.records)
    start.unlink()
    before = torch.load(saved / LAST)
    call("train", *words, "--max-update", 3)
    after = torch.load(saved / LAST)
    assert [state["optimizer_history"][-1]["num_updates"] for state in (before, after)] == [2, 3]
    assert entries(after["cfg"]["model"])["pruned_heads"] == f"{HEADS} D:2:1"
    assert len(hypotheses(capsys, data, saved / LAST)[0]) == 7
    model, _ = build.checkpoint(prune(saved / LAST, "D:2:3"))
    assert [str(head) for head in list_heads(model, "D")] == ["D:1:4", "D:2:2", "D:2:4"]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_printed_line_repeats_the_settings(kind, data, pruned):
    command, *words = shlex.split(fine_tuning_command(pruned[kind]))
    words = [PLUGIN if word == "lite_transformer_plugin" else word for word in words]
    assert words[0] == "DATA"
    parser = options.get_training_parser()
    found = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    expected = checkpoint_utils.load_checkpoint_to_cpu(str(pruned[kind]))["cfg"]
    assert found.optimizer.adam_betas == "(0.9, 0.98)" and found.criterion.label_smoothing == 0.1
    for name in ("criterion", "optimizer", "lr_scheduler"):
        assert found[name] == expected[name], name
    for name in ("batch_size", "max_tokens"):
        assert found.dataset[name] == expected.dataset[name]
    assert found.optimization == expected.optimization
    assert {k: v for k, v in found.task.items() if k != "data"} == {
        k: v for k, v in expected.task.items() if k != "data"
    }
    assert found.checkpoint.save_dir == f"{pruned[kind].stem}-fine-tuned"
    old, new = vars(model_config(torch.load(pruned["transformer"]))), vars(found.model)
    if kind == "transformer":
        assert {k: new[k] for k in old.keys() - new.keys()} == {}
        assert new["encoder_layers"] == old["encoder_layers"] == 2


def parsed(path: Path | None, *words) -> Namespace:
    source = [] if path is None else ["--pruned-from", str(path)]
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["DATA", "--arch", "pruned", *source, *words])


def test_dropout_can_be_chosen_anew(pruned):
    assert parsed(pruned["transformer"]).dropout == 0.1
    args = parsed(pruned["transformer"], "--dropout", "0.4", "--batch-size", "3")
    assert (args.dropout, args.batch_size, args.encoder_layers) == (0.4, 3, 2)
    model = build.from_arguments(args, vocabulary=24)
    assert model.encoder.dropout_module.p == 0.4 and len(list_heads(model)) == 24 - 14


@pytest.mark.parametrize(
    "kind, message",
    [
        (None, "--arch pruned needs --pruned-from CKPT"),
        ("transformer", "has all its heads, fine-tune it with its own --arch transformer"),
        ("missing", "No such file"),
    ],
)
def test_what_there_is_to_train_must_be_a_pruned_checkpoint(kind, message, trained):
    path = trained.get(kind, Path("missing.pt")) if kind else None
    with pytest.raises((ValueError, OSError), match=message):
        parsed(path)
