"""Gates of one change no bit; gradients of gates are those of the loss; they multiply and go."""

from contextlib import ExitStack

import pytest
import torch
from fairseq import utils
from head_models import (
    CHECKPOINTED,
    GENERATING,
    KINDS,
    SHAPES,
    full_pass,
    make_gates,
    model_of,
    net_input,
    passes,
    search,
    stepwise,
    traces,
    validation,
)
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin.heads import attentions, gated, masked, parse_heads, set_gates
from lite_transformer_plugin.heads.gates import _identity

# --- gates of one ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, flags", [*((kind, []) for kind in KINDS), *((kind, CHECKPOINTED) for kind in GENERATING)]
)
def test_gates_of_one_change_no_bit(kind, flags):
    model = model_of(kind, *flags)
    for shape, dims in SHAPES.items():
        for name, run in passes(kind).items():
            if name == "generation" and dims:
                continue
            expected = run(model, kind)
            with gated(model, make_gates(model, kind, dims)):
                assert torch.equal(run(model, kind), expected), f"{name} with gates {shape}"


@pytest.mark.parametrize("kind", GENERATING)
def test_gates_of_one_change_no_hypothesis(kind):
    model = model_of(kind)
    expected = search(model, kind)
    assert len(expected) == 9
    with gated(model, make_gates(model, kind, 0)):
        assert search(model, kind) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_gates_in_half_precision(kind, dtype):
    model = model_of(kind, dtype=dtype)
    for run in passes(kind).values():
        expected = run(model, kind)
        assert expected.dtype == dtype and expected.isfinite().all()
        with gated(model, make_gates(model, kind, 0)):
            assert torch.equal(run(model, kind), expected)
    gates = make_gates(model, kind, 2, requires_grad=True)
    with gated(model, gates):
        full_pass(model, kind).float().square().mean().backward()
    assert all(gate.grad.dtype == torch.float and gate.grad.any() for gate in gates.values())


def test_gates_of_one_leave_random_numbers_and_attention_weights():
    """Dropout and LayerDrop draw the same, and alignments are still returned."""
    flags = [f"--{name}=0.3" for name in ("dropout", "attention-dropout", "encoder-layerdrop")]
    model = model_of("transformer", *flags).train()
    results = []
    for dims in (None, 0, 2):
        with ExitStack() as stack:
            if dims is not None:
                stack.enter_context(gated(model, make_gates(model, "transformer", dims)))
            torch.manual_seed(3)
            logits, extra = model(**net_input("transformer"))
            results.append((logits, extra["attn"][0]))
    for logits, weights in results[1:]:
        assert torch.equal(logits, results[0][0]) and torch.equal(weights, results[0][1])


def test_what_generation_has_cached_serves_training():
    _identity.cache_clear()
    model = model_of("transformer")
    with torch.inference_mode(), masked(model, parse_heads("E:1:1")):
        expected = full_pass(model, "transformer")
    with masked(model, parse_heads("E:1:1")):
        logits = full_pass(model, "transformer")
        logits.sum().backward()
    assert torch.equal(logits, expected)
    assert model.encoder.layers[0].self_attn.v_proj.weight.grad.any()


def test_gates_multiply_and_go_in_any_order():
    kind = "lite_transformer"
    model = model_of(kind, dtype=torch.double)
    before, whole = traces(model), validation(model, kind)
    first = make_gates(model, kind, 0, torch.rand, dtype=torch.double)
    second = make_gates(model, kind, 2, torch.rand, dtype=torch.double)
    both = {place: first[place] * second[place] for place in first}
    alone = []
    for gates in (first, second, both):
        with gated(model, gates):
            alone.append(validation(model, kind))
    for order in ((0, 1), (1, 0)):
        removes = [set_gates(model, first), set_gates(model, second)]
        assert_close(validation(model, kind), alone[2], rtol=0, atol=1e-12)
        removes[order[0]]()
        assert torch.equal(validation(model, kind), alone[order[1]])
        removes[order[0]]()  # a second time: nothing happens
        assert torch.equal(validation(model, kind), alone[order[1]])
        removes[order[1]]()
        assert torch.equal(validation(model, kind), whole)
    assert traces(model) == before


# --- gradients ------------------------------------------------------------------------------------


def loss(model: nn.Module, kind: str) -> Tensor:
    logits = full_pass(model, kind)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=torch.double).view_as(logits)
    return (torch.log_softmax(logits, -1) * weights).sum()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gates_equal_finite_differences(kind, shape, monkeypatch):
    # fairseq computes softmax and gelu in float32 whatever the model is in
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim))
    model = model_of(kind, "--activation-fn", "tanh", dtype=torch.double)
    torch.manual_seed(2)
    gates = make_gates(
        model, kind, SHAPES[shape], torch.rand, dtype=torch.double, requires_grad=True
    )
    step = 1e-5
    with gated(model, gates):
        loss(model, kind).backward()
        for place, gate in gates.items():
            values = gate.detach().view(-1)  # changes the gate itself
            for i in torch.randperm(len(values))[:3].tolist():
                value = values[i].item()
                sides = []
                for values[i] in (value + step, value - step):
                    sides.append(loss(model, kind).item())
                values[i] = value
                expected = (sides[0] - sides[1]) / (2 * step)
                assert gate.grad.view(-1)[i].item() == pytest.approx(expected, 1e-5, 1e-6), place
    assert all(gate.grad.abs().max() > 1e-4 for gate in gates.values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", GENERATING)
def test_gradients_pass_through_checkpointed_activations(kind, shape):
    gradients = []
    for flags in ([], CHECKPOINTED):
        model = model_of(kind, *flags, dtype=torch.double).train()
        gates = make_gates(model, kind, SHAPES[shape], dtype=torch.double, requires_grad=True)
        with gated(model, gates):
            loss(model, kind).backward()
        gradients.append([g.grad for g in gates.values()] + [p.grad for p in model.parameters()])
    assert len(gradients[0]) > len(gates)
    for plain, checkpointed in zip(*gradients, strict=True):
        assert_close(checkpointed, plain, rtol=0, atol=1e-10)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["B x H", "T x B x H"])
@pytest.mark.parametrize("kind", GENERATING)
def test_gates_of_sentences_and_tokens_are_refused_with_incremental_state(kind, shape):
    model = model_of(kind)
    gates = make_gates(model, kind, SHAPES[shape])
    before = traces(model)
    for place in [a.place for a in attentions(model) if a.part != "E"]:
        for run in (stepwise, search):
            with pytest.raises(ValueError, match="incremental state.*one gate per head") as caught:
                with gated(model, {place: gates[place]}):
                    run(model, kind)
            assert "\n" not in str(caught.value)
    assert traces(model) == before


@pytest.mark.parametrize("shape", [(5,), (1,), (), (3, 5), (4, 3), (7, 3, 5), (1, 7, 3, 4)])
def test_gates_of_other_heads_are_refused(shape):
    model = model_of("transformer")
    before = traces(model)
    with pytest.raises(ValueError, match=r"the 4 heads of E:2: its last dimension must be 4"):
        set_gates(model, {("E", 1): torch.ones(4), ("E", 2): torch.ones(shape)})
    assert traces(model) == before


@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (7, 4), (3, 7, 4), (6, 3, 4), (1, 3, 4)])
def test_gates_of_other_sentences_are_refused(shape):
    model = model_of("transformer")
    before = traces(model)
    with pytest.raises(ValueError, match="does not fit 7 positions x 3 sentences with 4 heads"):
        with gated(model, {("E", 2): torch.ones(shape)}):
            validation(model, "transformer")
    assert traces(model) == before


def test_places_without_attention_are_refused():
    for kind, place in (("transformer", ("E", 4)), ("transformer_lm", ("A", 1))):
        name = f"{place[0]}:{place[1]}"
        with pytest.raises(ValueError, match=f"^{name}: Transformer.* has no attention there$"):
            set_gates(model_of(kind), {place: torch.ones(4)})
