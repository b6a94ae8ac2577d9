"""Pruned checkpoints: what is in them, and that stock commands load them strictly."""

import copy
import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from pruned_checkpoints import (
    FORMATS,
    HEADS,
    MASKS,
    MODELS,
    data_of,
    entries,
    hypotheses,
    prune,
    prune_every,
    train_every,
)
from stock import PLUGIN, call, interactive
from torch import Tensor
from torch.testing import assert_close

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli import average_checkpoints, profile
from lite_transformer_plugin.cost import count
from lite_transformer_plugin.heads import list_heads, parse_heads
from lite_transformer_plugin.models.pruned import model_config, prune_checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return data_of(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    return train_every(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> dict[str, Path]:
    return prune_every(tmp_path_factory.getbasetemp())


# --- what is in the file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_the_configuration_says_what_is_gone(kind, trained, pruned):
    before, after = checkpoint_files.read(trained[kind]), checkpoint_files.read(pruned[kind])
    old, new = entries(model_config(before)), entries(model_config(after))
    name = "_name" if "_name" in old else "arch"
    changed = {"_name", "arch", "pruned_heads", "original_arch"}
    assert new["pruned_heads"] == HEADS and new["original_arch"] == old[name]
    assert new[name] == "pruned"
    assert {k: v for k, v in new.items() if k not in changed} == {
        k: v for k, v in old.items() if k not in changed
    }
    assert old["dropout"] == new["dropout"]


def test_everything_but_weights_and_optimizer_stays(trained, pruned):
    before, after = checkpoint_files.read(trained["bart"]), checkpoint_files.read(pruned["bart"])
    assert before.keys() - after.keys() == {"last_optimizer_state"}
    for name in after.keys() - {"model", "cfg"}:
        assert after[name] == before[name], name
    for name in after["cfg"].keys() - {"model"}:
        assert str(after["cfg"][name]) == str(before["cfg"][name]), name


def test_shared_tensors_and_half_precision_stay(trained):
    state = checkpoint_files.read(trained["transformer"])
    embeddings = [name for name in state["model"] if "embed_tokens" in name or "output_p" in name]
    halves: dict[int, Tensor] = {}
    for name, tensor in state["model"].items():
        state["model"][name] = halves.setdefault(tensor.data_ptr(), tensor.half())
    path = trained["transformer"].with_name("half.pt")
    torch.save(state, path)
    tensors = torch.load(prune(path))["model"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.half}
    assert len({tensors[name].data_ptr() for name in embeddings}) == 1 and len(embeddings) == 3
    stored = {t.data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    assert sum(stored.values()) == sum({t.data_ptr(): t.nbytes for t in tensors.values()}.values())


@pytest.mark.parametrize("kind", FORMATS)
def test_neither_state_nor_model_is_changed(kind, trained):
    model, _ = build.checkpoint(trained[kind])
    state = checkpoint_files.read(trained[kind])
    tensors, names, heads = dict(state["model"]), set(model.state_dict()), list_heads(model)
    config = copy.deepcopy(entries(model_config(state)))
    prune_checkpoint(state, parse_heads(HEADS), model)
    assert list(state["model"]) == list(tensors)
    assert all(state["model"][name] is tensor for name, tensor in tensors.items())
    assert "last_optimizer_state" in state and entries(model_config(state)) == config
    assert set(model.state_dict()) == names and list_heads(model) == heads


@pytest.mark.parametrize("kind", MODELS)
def test_pruning_composes(kind, trained, pruned):
    """First some heads, then the others, by the names that they had at first."""
    first = prune(trained[kind], "E:1:1 A:1:3 D:1:2 A:2:1,3", f"first-{kind}.pt")
    second = prune(first, "E:2:1-4 A:1:2 A:2:2,4 D:1:1,3", f"second-{kind}.pt")
    at_once, stepwise = checkpoint_files.read(pruned[kind]), checkpoint_files.read(second)
    assert entries(model_config(stepwise)) == entries(model_config(at_once))
    assert stepwise["model"].keys() == at_once["model"].keys()
    for name, tensor in at_once["model"].items():
        if not name.endswith("_float_tensor"):
            assert torch.equal(stepwise["model"][name], tensor), name


def test_averages_of_training_are_pruned_too(trained):
    model, _ = build.checkpoint(trained["transformer"])
    state = checkpoint_files.read(trained["transformer"])
    state["extra_state"]["ema"] = dict(state["model"])
    after = prune_checkpoint(state, parse_heads(HEADS), model)
    assert after["extra_state"]["ema"].keys() == after["model"].keys()
    assert all(torch.equal(after["extra_state"]["ema"][n], t) for n, t in after["model"].items())
    assert state["extra_state"]["ema"].keys() == state["model"].keys()


def test_optimizers_of_2018_go_too(trained):
    model, _ = build.checkpoint(trained["legacy"])
    state = checkpoint_files.read(trained["legacy"])
    state["optimizer_history"][-1]["optimizer"] = state.pop("last_optimizer_state")
    after = prune_checkpoint(state, parse_heads(HEADS), model)
    assert "optimizer" not in after["optimizer_history"][-1]
    assert after["optimizer_history"][-1]["num_updates"] == 1
    assert "optimizer" in state["optimizer_history"][-1]


@pytest.mark.parametrize(
    "heads, message",
    [("", "no heads to remove"), ("E:1:1", "E:1:1: layer 1 of part E has heads 2-4")],
)
def test_bad_heads(heads, message, pruned):
    with pytest.raises(ValueError, match=message):
        prune(pruned["transformer"], heads)


# --- stock commands -------------------------------------------------------------------------------


def newer(kind: str) -> str:
    """The kind that has the same weights in a format that loads faster."""
    return "transformer" if kind == "legacy" else kind


@pytest.mark.parametrize("kind", FORMATS)
def test_generation_sees_the_masked_model(kind, data, trained, pruned, capsys, tmp_path):
    texts, scores = hypotheses(capsys, data, pruned[kind])
    expected_texts, expected_scores = hypotheses(capsys, data, trained[newer(kind)], *MASKS)
    assert texts == expected_texts and len(texts) == 7
    assert_close(scores, expected_scores, rtol=0, atol=2e-4)  # four digits are printed
    source = tmp_path / "source"
    source.write_text("a b c\nb a\n")
    interactive(data, pruned[kind], "--input", source)
    assert capsys.readouterr().out.count("\nH-") == 2


@pytest.mark.parametrize("kind", FORMATS)
def test_validation_sees_the_masked_model(kind, data, trained, pruned, capsys):
    def loss(path: Path, *task) -> float:
        words = ["--cpu", "--batch-size", 4, "--num-workers", 0, "--log-format", "json"]
        call("validate", data, "--user-dir", PLUGIN, "--path", path, *task, *words)
        return float(re.findall(r'"valid_loss": "(\S+)"', capsys.readouterr().out)[-1])

    expected = loss(trained[newer(kind)], *MASKS)
    assert loss(pruned[kind], "--task", "translation") == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_masks_of_these_tests_change_much(kind, trained, pruned):
    source, target = torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([[2, 9, 8, 7]])
    whole, less = (build.checkpoint(paths[kind])[0].eval() for paths in (trained, pruned))
    logits, fewer = (model(source, torch.tensor([5]), target)[0] for model in (whole, less))
    assert (logits - fewer).abs().mean() > 0.1


@pytest.mark.parametrize("kind", MODELS)
def test_the_class_is_the_original_one(kind, trained, pruned):
    model, state = build.checkpoint(pruned[kind])
    assert type(model) is type(build.checkpoint(trained[kind])[0])
    assert state["cfg"].model.pruned_heads == HEADS


@pytest.mark.parametrize("kind", FORMATS)
def test_overrides_reach_the_original(kind, data, pruned):
    overrides = {"dropout": 0.7, "data": str(data)}
    load = checkpoint_utils.load_model_ensemble_and_task
    [model], cfg, _ = load([str(pruned[kind])], overrides)
    assert model.encoder.dropout_module.p == 0.7 == cfg.model.dropout
    assert cfg.model.encoder_layers == 2


# --- our own commands -----------------------------------------------------------------------------


def test_costs(trained, pruned, capsys):
    before, after = (count(build.checkpoint(p["transformer"])[0]) for p in (trained, pruned))
    layer = 4 * 30 * 16 * 4 + 2 * 30**2 * 4  # of one head of four channels
    for part, share in (("attention", 8), ("cross-attention", 6)):
        assert before.mult_adds_by("part")[part] - after.mult_adds_by("part")[part] == share * layer
    assert profile.main(["--path", str(pruned["transformer"]), "--convention", "paper"]) == 0
    assert "pruned-transformer.pt" in capsys.readouterr().out


def test_pruned_checkpoints_average(data, pruned):
    path, output = pruned["lite_transformer"], data / "average.pt"
    words = ["--inputs", str(path), str(path), "--output", str(output)]
    assert average_checkpoints.main(words) == 0
    model, state = build.checkpoint(output)
    assert len(list_heads(model)) == 24 - 14
    assert all(torch.equal(state["model"][n], t) for n, t in torch.load(path)["model"].items())
