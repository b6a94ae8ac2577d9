"""Gates of one change no bit; masks act alike in training, validation and generation."""

import copy
import io
from contextlib import ExitStack

import pytest
import torch
from conftest import randomise
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from test_head_names import WORDS, make
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import (
    Head,
    attentions,
    gated,
    list_heads,
    mask_heads,
    masked,
    parse_heads,
    set_gates,
)
from lite_transformer_plugin.heads.gates import _identity, mask_gates

PAD, EOS = 1, 2
KINDS = ["lite_transformer", "transformer", "bart", "transformer_lm", "roberta"]
GENERATING = KINDS[:-1]
TRANSLATING = KINDS[:3]
NO_DROPOUT = [f"--{name}dropout=0" for name in ("", "attention-", "activation-")]
SOURCE, TARGET = (7, 4, 1), (5, 3, 1)  # real tokens of each sentence
SHAPES = {"H": 0, "B x H": 1, "T x B x H": 2}  # dimensions in front of the heads


def model_of(kind: str, *flags: str, **how) -> nn.Module:
    extra = ["--weight-dropout=0"] if kind == "lite_transformer" else []
    model = make(kind, *NO_DROPOUT, *extra, *flags)
    return randomise(model).to(**how).eval()


def rows(lengths, left: bool = False) -> Tensor:
    """Random words (B, T) and padding, the last word of each row an end of sentence."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.full((len(lengths), max(lengths)), PAD)
    for row, n in zip(batch, lengths, strict=True):
        words = torch.randint(4, WORDS, (n,), generator=generator)
        words[-1] = EOS
        row[-n if left else 0 :][:n] = words
    return batch


def net_input(kind: str) -> dict[str, Tensor]:
    if kind in ("transformer_lm", "roberta"):
        return {"src_tokens": rows(TARGET)}
    source = {
        "src_tokens": rows(SOURCE, left=kind != "bart"),
        "src_lengths": torch.tensor(SOURCE),
    }
    return source | {"prev_output_tokens": rows(TARGET)}


def full_pass(model: nn.Module, kind: str) -> Tensor:
    """Logits (B, T, V), teacher-forced."""
    return model(**net_input(kind))[0]


def stepwise(model: nn.Module, kind: str) -> Tensor:
    """Logits (B, T, V), one position after the other with incremental state."""
    words, encoded = rows(TARGET), {}
    if kind != "transformer_lm":
        source = net_input(kind)
        encoded["encoder_out"] = model.encoder(source["src_tokens"], source["src_lengths"])
    state: dict = {}
    with torch.no_grad():
        steps = [
            model.decoder(words[:, : i + 1], incremental_state=state, **encoded)[0]
            for i in range(words.size(1))
        ]
    return torch.cat(steps, dim=1)


def search(model: nn.Module, kind: str) -> list[tuple]:
    """Every hypothesis of a beam search, with its scores."""
    model = copy.deepcopy(model)  # a search leaves its beam size in a BART
    generator = SequenceGenerator([model], build.dictionary(WORDS), beam_size=3, max_len_b=8)
    inputs = {name: x for name, x in net_input(kind).items() if name != "prev_output_tokens"}
    prefix = torch.tensor([[5], [6], [7]]) if kind == "transformer_lm" else None
    found = generator.generate([model], {"net_input": inputs}, prefix_tokens=prefix)
    return [
        (h["tokens"].tolist(), h["score"].item(), h["positional_scores"].tolist())
        for hypotheses in found
        for h in hypotheses
    ]


def training(model: nn.Module, kind: str) -> Tensor:
    try:
        return full_pass(model.train(), kind).detach()
    finally:
        model.eval()


def validation(model: nn.Module, kind: str) -> Tensor:
    with torch.no_grad():
        return full_pass(model, kind)


def passes(kind: str) -> dict:
    with_state = {"generation": stepwise} if kind in GENERATING else {}
    return {"training": training, "validation": validation} | with_state


def sizes(kind: str, part: str) -> tuple[int, int]:
    """T, B of the queries of this part's attentions."""
    lengths = SOURCE if part == "E" and kind in TRANSLATING else TARGET
    return max(lengths), len(lengths)


def make_gates(model: nn.Module, kind: str, dims: int, fill=torch.ones, **how) -> dict:
    return {
        a.place: fill(*sizes(kind, a.part)[2 - dims :], len(a.heads), **how)
        for a in attentions(model)
    }


# --- gates of one ---------------------------------------------------------------------------------


CHECKPOINTED = ["--checkpoint-activations"]  # fairseq's RoBERTa has no such flag


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


def traces(model: nn.Module) -> list:
    """What gates could leave behind."""
    found: list = [id(t) for t in model.state_dict().values()] and list(model.state_dict())
    for attention in attentions(model):
        module = attention.module
        hooks = [len(x) for name, x in vars(module).items() if "_hooks" in name]
        found += [attention.place, id(module.out_proj), sorted(vars(module)), hooks]
    return found


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
