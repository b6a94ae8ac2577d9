"""Masks act alike in training, validation and generation, and leave nothing behind."""

import copy
import io
from contextlib import ExitStack

import pytest
import torch
from conftest import randomise
from head_models import (
    CHECKPOINTED,
    GENERATING,
    KINDS,
    PAD,
    TARGET,
    TRANSLATING,
    make,
    model_of,
    passes,
    rows,
    search,
    traces,
    validation,
)
from torch import nn
from torch.testing import assert_close

from lite_transformer_plugin.heads import (
    Head,
    attentions,
    list_heads,
    mask_heads,
    masked,
    parse_heads,
)
from lite_transformer_plugin.heads.gates import mask_gates

# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_masking_each_head_acts_everywhere_alike(kind):
    """In training, validation and generation; decoding agrees with the full pass."""
    model, real = model_of(kind), rows(TARGET).ne(PAD)
    whole = {name: run(model, kind)[real] for name, run in passes(kind).items()}
    for head in list_heads(model):
        with masked(model, [head]):
            lost = {name: run(model, kind)[real] for name, run in passes(kind).items()}
        for name in whole:
            change = (lost[name] - whole[name]).abs().max()
            assert change > 1e-3, f"masking {head} changes nothing in {name}"
            difference = (lost[name] - lost["validation"]).abs().max()
            assert difference < 1e-5, f"{name} and validation differ with {head} masked"
        assert torch.equal(validation(model, kind)[real], whole["validation"])


def without_columns(model: nn.Module, heads) -> nn.Module:
    """A copy in which the output projections ignore these heads."""
    changed = copy.deepcopy(model)
    for attention in attentions(changed):
        weight = attention.module.out_proj.weight
        columns = weight.data.view(weight.size(0), len(attention.heads), -1)  # C x H x D
        for i, name in enumerate(attention.names()):
            if name in heads:
                columns[:, i] = 0
    return changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_equals_zero_columns_of_the_output_projection(kind):
    model = model_of(kind, dtype=torch.double)
    every = list_heads(model)
    for heads in [*([head] for head in every), every[::2], every]:
        reference = without_columns(model, heads)
        with masked(model, heads):
            for run in passes(kind).values():
                assert_close(run(model, kind), run(reference, kind), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", GENERATING)
def test_beam_search_with_masks_equals_that_with_zero_columns(kind):
    model = model_of(kind, dtype=torch.double)
    whole, changed = search(model, kind), 0
    for heads in (list_heads(model)[:1], list_heads(model)[1::2], list_heads(model)):
        with masked(model, heads):
            found = search(model, kind)
        expected = search(without_columns(model, heads), kind)
        assert [h[0] for h in found] == [h[0] for h in expected]
        assert_close([h[1] for h in found], [h[1] for h in expected], rtol=0, atol=1e-5)
        changed += found != whole
    assert changed == 3


def test_rescaling_makes_up_for_the_masked_heads():
    model = model_of("transformer", dtype=torch.double)
    gates = mask_gates(model, parse_heads("E:1:2 E:3:1-3 D:2:1-3"), rescale=True)
    expected = {
        ("E", 1): [4 / 3, 0, 4 / 3, 4 / 3],
        ("E", 3): [0, 0, 0, 4.0],
        ("D", 2): [0, 0, 0.0],
    }
    assert gates.keys() == expected.keys()
    for place, values in expected.items():
        assert_close(gates[place], torch.tensor(values))
    reference = without_columns(model, parse_heads("E:3:1-3"))
    reference.encoder.layers[2].self_attn.out_proj.weight.data *= 4
    with masked(model, parse_heads("E:3:1-3"), rescale=True):
        output = validation(model, "transformer")
    assert_close(output, validation(reference, "transformer"), rtol=0, atol=1e-11)


@pytest.mark.parametrize("rescale", [True, False])
def test_a_module_without_any_head_gives_its_bias(rescale):
    model = model_of("lite_transformer")
    module = model.encoder.layers[0].self_attn.attention
    x = torch.randn(3, 2, module.embed_dim)
    with masked(model, parse_heads("E:1:1,2"), rescale=rescale):
        output = module(x, x, x)[0]
        assert validation(model, "lite_transformer").isfinite().all()
    assert torch.equal(output, module.out_proj.bias.expand_as(output))


# --- coming and going -----------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind(kind):
    model = model_of(kind)
    before, output = traces(model), validation(model, kind)
    heads = list_heads(model)[:1]
    with masked(model, heads):
        assert list(model.state_dict()) == before[: len(model.state_dict())]
        assert traces(model) != before
        assert not torch.equal(validation(model, kind), output)
    assert traces(model) == before
    with pytest.raises(Stop), masked(model, heads):
        validation(model, kind)
        raise Stop
    assert traces(model) == before
    assert torch.equal(validation(model, kind), output)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("kind", TRANSLATING)
def test_nothing_is_left_behind_by_a_pass_that_fails(kind, error):
    model, heads = model_of(kind), parse_heads("A:1:1")

    def fail(*_):
        raise error

    before, output, names = traces(model), validation(model, kind), list(model.state_dict())
    with masked(model, heads):
        expected = validation(model, kind)
        hook = model.decoder.layers[0].encoder_attn.q_proj.register_forward_pre_hook(fail)
        with pytest.raises(error):
            validation(model, kind)
        hook.remove()
        if error is Stop:  # at once; after an interrupt it takes the next pass or the end
            assert list(model.state_dict()) == names
        assert torch.equal(validation(model, kind), expected)
        hook = model.decoder.layers[0].encoder_attn.q_proj.register_forward_pre_hook(fail)
        with pytest.raises(error):
            validation(model, kind)
    hook.remove()
    assert traces(model) == before
    assert torch.equal(validation(model, kind), output)


def test_masks_within_masks():
    kind = "transformer"
    model = model_of(kind)
    with masked(model, parse_heads("E:1:1 D:1:1")):
        outer = validation(model, kind)
        with masked(model, parse_heads("E:1:1,2 A:1:3")):
            inner = validation(model, kind)
        assert torch.equal(validation(model, kind), outer)
    with masked(model, parse_heads("E:1:1,2 D:1:1 A:1:3")):
        assert torch.equal(validation(model, kind), inner)


@pytest.mark.parametrize("flags", [[], CHECKPOINTED], ids=["", "checkpointed"])
@pytest.mark.parametrize("kind", TRANSLATING)
def test_a_copy_of_a_gated_model_stands_alone(kind, flags):
    model = model_of(kind, *flags)
    whole = validation(model, kind)
    remove = mask_heads(model, parse_heads("E:1:2"))
    expected = validation(model, kind)
    twin = copy.deepcopy(model)
    remove()
    assert torch.equal(validation(twin, kind), expected)
    assert torch.equal(validation(model, kind), whole)
    with masked(twin, parse_heads("A:1:1")), masked(model, parse_heads("E:1:2 A:1:1")):
        assert torch.equal(validation(twin, kind), validation(model, kind))
    assert torch.equal(validation(twin, kind), expected)
    randomise(twin, seed=1)
    assert torch.equal(validation(model, kind), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_saved_meanwhile_is_of_the_whole_model(kind):
    model = model_of(kind)
    whole, names = validation(model, kind), list(model.state_dict())
    file = io.BytesIO()
    with masked(model, list_heads(model)[:2]):
        validation(model, kind)
        assert list(model.state_dict()) == names
        torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = make(kind).eval()
    nn.Module.load_state_dict(fresh, torch.load(file), strict=True)
    assert torch.equal(validation(fresh, kind), whole)


def test_a_mask_must_name_heads_of_the_model():
    model = model_of("transformer")
    before = traces(model)
    for heads, message in (
        ([], "a mask must name at least one head, as E:1:3"),
        ([Head("E", 1, 5)], "E:1:5: layer 1 of part E has heads 1-4"),
        (parse_heads("E:1:1 A:3:1"), "A:3:1: the model has .* in layers 1,2"),
    ):
        for mask in (masked, mask_gates, mask_heads):
            with pytest.raises(ValueError, match=message), ExitStack() as stack:
                result = mask(model, heads)
                if mask is masked:
                    stack.enter_context(result)
    assert traces(model) == before
