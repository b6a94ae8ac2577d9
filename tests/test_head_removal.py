"""Removed = masked, on every path of every kind of model; what is left is in order."""

import copy

import pytest
import torch
from conftest import randomise
from head_models import (
    GENERATING,
    KINDS,
    PAD,
    TARGET,
    full_pass,
    model_of,
    passes,
    rows,
    search,
    validation,
)
from omegaconf import OmegaConf
from torch import nn
from torch.testing import assert_close

from lite_transformer_plugin.cost import Lengths, count
from lite_transformer_plugin.heads import (
    Head,
    attentions,
    list_heads,
    mask_heads,
    masked,
    parse_heads,
)
from lite_transformer_plugin.heads.removal import HEADS_LIE_ALONG, remove_heads_, shrink_tensors

CLOSE = dict(rtol=0, atol=1e-5)


def selections(model: nn.Module) -> dict[str, list[Head]]:
    every = list_heads(model)
    cross = list_heads(model, "A")
    return {
        "first": every[:1],
        "every other": every[1::2],
        "a whole layer": [head for head in every if head.place == every[-1].place],
        **({"all cross-attention": cross} if cross else {}),
        "all but the last": every[:-1],
        "all": every,
    }


def without(model: nn.Module, heads) -> nn.Module:
    pruned = copy.deepcopy(model)
    remove_heads_(pruned, heads)
    return pruned


# --- removed = masked -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_removed_equals_masked(kind):
    """In training, validation and step by step; with padding on either side."""
    model = model_of(kind)
    for name, heads in selections(model).items():
        pruned = without(model, heads)
        with masked(model, heads):
            for run in passes(kind).values():
                assert_close(run(pruned, kind), run(model, kind), **CLOSE, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_what_remains_equal_those_with_masks(kind):
    model = model_of(kind, dtype=torch.double)
    for name, heads in selections(model).items():
        pruned = without(model, heads)
        model.zero_grad()
        with masked(model, heads):
            loss(model, kind).backward()
        loss(pruned, kind).backward()
        expected = shrink_tensors(gradients(model), heads, model)
        found = gradients(pruned)
        assert found.keys() == expected.keys() and len(found) > 20
        assert_close(found, expected, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


def loss(model: nn.Module, kind: str) -> torch.Tensor:
    logits = full_pass(model, kind)
    return logits.log_softmax(-1)[..., 5][rows(TARGET).ne(PAD)].mean()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of parameters without influence zero, as they are None in one model and zero in another."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", GENERATING)
def test_every_hypothesis_equals_that_with_masks(kind, fast):
    """Also as fairseq prepares a model for generation, one sentence at a time or several."""
    model = model_of(kind)
    for heads in selections(model).values():
        pruned, original = without(model, heads), copy.deepcopy(model)
        for prepared in (pruned, original) if fast else ():
            prepare(prepared, batch_size=1)
        with masked(original, heads):
            expected = search(original, kind)
        found = search(pruned, kind)
        assert [h[0] for h in found] == [h[0] for h in expected] and len(found) == 9
        assert_close([h[1:] for h in found], [h[1:] for h in expected], **CLOSE)


def prepare(model: nn.Module, batch_size: int) -> None:
    cfg = {"generation": {"beam": 3}, "dataset": {"batch_size": batch_size}}
    model.prepare_for_inference_(OmegaConf.create(cfg))


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer"])
def test_heads_can_go_after_preparation_for_generation(kind):
    model = model_of(kind)
    heads = list_heads(model)[::2]
    prepared = copy.deepcopy(model)
    prepare(prepared, batch_size=1)
    remove_heads_(prepared, heads)
    with masked(model, heads):
        assert_close(validation(prepared, kind), validation(model, kind), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind, dtype):
    """Weights are the same to the bit, results as near as half precision lets them be."""
    model = model_of(kind)
    heads = list_heads(model)[1::2]
    pruned = without(model, heads).to(dtype)
    assert_same_bits(without(copy.deepcopy(model).to(dtype), heads), pruned)
    whole, expected = validation(model, kind), validation(without(model, heads), kind)
    real = rows(TARGET).ne(PAD)  # nothing reads what comes out at padding
    effect = (expected - whole)[real].abs().mean()
    for run in passes(kind).values():
        logits = run(pruned, kind)
        assert logits.dtype == dtype
        assert (logits - expected)[real].abs().mean() < effect / 5


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for name in one.keys() - {name for name in one if name.endswith("_float_tensor")}:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("kind", GENERATING)
def test_with_activation_checkpointing(kind):
    model = model_of(kind, "--checkpoint-activations", dtype=torch.double)
    heads = selections(model)["every other"] + selections(model)["a whole layer"]
    pruned = without(model, heads)
    with masked(model, heads):
        loss(model, kind).backward()
    loss(pruned, kind).backward()
    assert_close(gradients(pruned), shrink_tensors(gradients(model), heads, model), **CLOSE)


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer"])
def test_pruned_models_script(kind):
    model = model_of(kind)
    for heads in (list_heads(model)[1::2], list_heads(model)):
        pruned = without(model, heads)
        with torch.no_grad():
            logits = full_pass(torch.jit.script(pruned), kind)
        assert_close(logits, validation(pruned, kind), **CLOSE)


# --- order, names and sizes -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_removal_composes(kind):
    model = model_of(kind)
    every = list_heads(model)
    step, rest = every[::3], every[1::3]
    twice = without(without(model, step), rest)
    assert_same_bits(twice, without(model, step + rest))
    assert_same_bits(twice, without(without(model, rest), step))
    assert list_heads(twice) == every[2::3]
    assert [a.place for a in attentions(twice)] == [a.place for a in attentions(model)]


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_models_take_masks_by_their_old_names(kind):
    model = model_of(kind)
    gone, hidden = list_heads(model)[::3], list_heads(model)[1::3]
    pruned = without(model, gone)
    with masked(pruned, hidden), masked(model, gone + hidden):
        for run in passes(kind).values():
            assert_close(run(pruned, kind), run(model, kind), **CLOSE)


# --- costs ----------------------------------------------------------------------------------------


def test_costs_are_those_of_the_heads_that_are_left():
    model = model_of("transformer")
    whole = count(model, Lengths(7, 5)).mult_adds_by("part")
    half = without(model, [h for h in list_heads(model, "ED") if h.head % 2])
    halved = count(half, Lengths(7, 5)).mult_adds_by("part")
    width, size, source, target = 16, 4, 7, 5  # encoder: three layers lose two of four heads
    encoder = 3 * 2 * (source * 4 * width * size + 2 * source**2 * size)
    width, size = 12, 4  # decoder: two layers lose two of three heads
    decoder = 2 * 2 * (target * 4 * width * size + 2 * target**2 * size)
    assert whole["attention"] - halved["attention"] == encoder + decoder
    assert {k: v for k, v in whole.items() if k != "attention"} == {
        k: v for k, v in halved.items() if k != "attention"
    }


@pytest.mark.parametrize("kind", KINDS)
def test_no_heads_cost_nothing(kind):
    model = model_of(kind)
    remove_heads_(model, list_heads(model))
    cost = count(model)
    by_part = cost.mult_adds_by("part")
    assert by_part["attention"] == by_part["cross-attention"] == 0
    assert not cost.uncounted
    assert cost.parameters == sum(p.numel() for p in model.parameters())


# --- state dicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_shrunken_entries_are_those_of_the_shrunken_model(kind):
    model = model_of(kind)
    for heads in selections(model).values():
        pruned, whole = without(model, heads), model.state_dict()
        entries = shrink_tensors(whole, heads, model)
        again = without(randomise(copy.deepcopy(model), seed=7), heads)
        nn.Module.load_state_dict(again, entries, strict=True)
        assert_same_bits(again, pruned)
        changed = {name for name in entries if entries[name] is not whole[name]}
        assert all(any(name.endswith(end) for end in HEADS_LIE_ALONG) for name in changed)


def old_names(entries: dict) -> dict:
    """As fairseq named its tensors in 2018: the three projections in one."""
    old = dict(entries)
    for name in [name for name in old if name.endswith("self_attn.q_proj.weight")]:
        path = name.removesuffix("q_proj.weight")
        for kind in ("weight", "bias"):
            parts = [old.pop(f"{path}{letter}_proj.{kind}") for letter in "qkv"]
            old[f"{path}in_proj_{kind}"] = torch.cat(parts)
    return old


def test_old_names_are_understood():
    model = model_of("transformer")
    heads = parse_heads("E:1:1,4 A:1:1,2,3")
    old = old_names(model.state_dict())
    names = list(old)
    entries = shrink_tensors(old, heads, model)
    expected = shrink_tensors(model.state_dict(), heads, model)
    assert entries.keys() == expected.keys() and list(old) == names
    assert all(torch.equal(entries[name], tensor) for name, tensor in expected.items())


def test_entries_of_another_model_are_refused():
    model, other = model_of("transformer"), model_of("transformer")
    remove_heads_(other, parse_heads("E:1:1"))
    with pytest.raises(ValueError, match=r"encoder.layers.0.self_attn: 12 rows of queries"):
        shrink_tensors(other.state_dict(), parse_heads("E:1:2"), model)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, message",
    [
        ("E:1:2 E:1:9", r"E:1:9: layer 1 of part E has heads 2-4"),
        ("A:1:1 E:1:1", r"E:1:1: layer 1 of part E has heads 2-4"),  # removed before
        ("D:1:1", r"D:1:1: layer 1 of part D has no heads"),
        ("A:9:1", r"A:9:1: the model has encoder-decoder attention in layers 1,2"),
    ],
)
def test_unknown_heads_are_refused_before_anything_is_done(names, message):
    model = model_of("transformer")
    remove_heads_(model, parse_heads("E:1:1 D:1:1-3"))
    before = list_heads(model)
    with pytest.raises(ValueError, match=message):
        remove_heads_(model, parse_heads(names))
    assert list_heads(model) == before


def test_learned_keys_are_refused():
    """fairseq's attention with fewer heads fails on them."""
    model = model_of("transformer")
    module = model.encoder.layers[0].self_attn
    model.encoder.layers[0].self_attn = type(module)(16, 4, self_attention=True, add_bias_kv=True)
    with pytest.raises(ValueError, match=r"encoder.layers.0.self_attn has learned keys"):
        remove_heads_(model, parse_heads("E:1:1"))


def test_masks_are_taken_away_first():
    model = model_of("transformer")
    remove = mask_heads(model, parse_heads("E:1:1"))
    with pytest.raises(ValueError, match=r"encoder.layers.0.self_attn: take its gates or masks"):
        remove_heads_(model, parse_heads("D:1:1 E:1:1"))
    assert Head("D", 1, 1) in list_heads(model)
    remove()
    remove_heads_(model, parse_heads("D:1:1 E:1:1"))
    assert not {Head("D", 1, 1), Head("E", 1, 1)} & set(list_heads(model))
