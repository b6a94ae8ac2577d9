"""Importance is the mean |derivative| of the loss by head gates, whatever the batching."""

from functools import partial

import pytest
import torch
from conftest import randomise
from head_models import make
from importance_batches import (
    CRITERIA,
    KINDS,
    PAD,
    PAIRS,
    SMOOTHED,
    assert_same,
    batch_of,
    batches_of,
    importance_of,
    model_of,
)
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin.heads import Head, attentions, gated, masked, parse_heads
from lite_transformer_plugin.heads.importance import UNITS, measure, sum_units
from lite_transformer_plugin.heads.removal import remove_heads_

# --- the definition -------------------------------------------------------------------------------


@pytest.fixture
def exact(monkeypatch):
    """fairseq takes softmax in float32, too coarse for a difference of losses."""

    def in_double(stock, x, dim, dtype=None):
        return stock(x, dim, dtype=None if x.dtype == torch.double else dtype)

    for name in ("softmax", "log_softmax"):
        stock = getattr(nn.functional, name)
        monkeypatch.setattr(nn.functional, name, partial(in_double, stock))


def derivative(model, kind: str, sample: dict, place, gate: Tensor, at: tuple) -> float:
    """Of the loss by one entry of a gate of ones: the central difference."""
    losses = []
    for step in (1e-5, -1e-5):
        changed = gate.clone()
        changed[at] += step
        with torch.no_grad(), gated(model, {place: changed}):
            losses.append(CRITERIA[kind](model, sample)[0].sum().item())
    return (losses[0] - losses[1]) / 2e-5


def tokens_of(sample: dict, part: str) -> Tensor:
    inputs = sample["net_input"]
    return inputs["src_tokens" if part == "E" else "prev_output_tokens"]


def by_sentence(model, kind: str, pairs: list) -> dict[Head, float]:
    """I_h word for word: a gate per head, one sentence after the other, without padding."""
    scores = {}
    for attention in attentions(model.eval()):
        gate = torch.ones(len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slopes = [
                derivative(model, kind, batch_of(kind, [pair]), attention.place, gate, (i,))
                for pair in pairs
            ]
            scores[head] = sum(map(abs, slopes)) / len(pairs)
    return scores


def by_token(model, kind: str, sample: dict) -> dict[Head, float]:
    scores = {}
    for attention in attentions(model.eval()):
        real = tokens_of(sample, attention.part).ne(PAD).t()
        gate = torch.ones(*real.shape, len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slopes = [
                derivative(model, kind, sample, attention.place, gate, (*at, i))
                for at in real.nonzero().tolist()
            ]
            scores[head] = sum(map(abs, slopes)) / len(slopes)
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_per_sentence_it_is_the_papers_equation(kind, exact):
    model = model_of(kind)
    found = importance_of(model, kind)
    expected = by_sentence(model, kind, PAIRS)
    assert min(expected.values()) > 1e-3
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer"])
def test_per_token_it_is_the_mean_over_the_queries(kind, exact):
    model, sample = model_of(kind), batch_of(kind, PAIRS[:2])
    assert sample["net_input"]["src_tokens"].eq(PAD).any()
    found = importance_of(model, kind, [sample], "token")
    assert_same(found, by_token(model, kind, sample))


def test_per_batch_signs_cancel(exact):
    model = model_of("transformer")
    [whole] = batches_of("transformer", 5)
    found = importance_of(model, "transformer", [whole], "batch")
    for attention in attentions(model.eval()):
        gate = torch.ones(len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slope = derivative(model, "transformer", whole, attention.place, gate, (i,))
            assert found[head] == pytest.approx(abs(slope), rel=1e-6, abs=1e-6)
    single = batches_of("transformer", 1)
    alone = importance_of(model, "transformer", single, "batch")
    assert_same(alone, importance_of(model, "transformer", single, "sentence"))
    shares = [found[head] / (5 * alone[head]) for head in found]
    assert max(shares) < 1 + 1e-6 and min(shares) < 0.5


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["sentence", "token"])
@pytest.mark.parametrize("kind", KINDS)
def test_batching_and_padding_do_not_count(kind, unit):
    model = model_of(kind)
    expected = importance_of(model, kind, batches_of(kind, 1), unit)
    lefts = {"lite_transformer": ("", "source", "source target"), "transformer": ("", "source")}
    for left in lefts.get(kind, ("",)):
        for size in (2, 3, 5):
            found = importance_of(model, kind, batches_of(kind, size, left), unit)
            assert_same(found, expected)


def test_counts():
    model = model_of("transformer")
    samples = [{}, *batches_of("transformer", 3), None]
    source, target = (sum(len(pair[i]) for pair in PAIRS) for i in (0, 1))
    expected = {
        "sentence": {"E": 5, "A": 5, "D": 5},
        "token": {"E": source, "A": target, "D": target},
        "batch": {"E": 2, "A": 2, "D": 2},
    }
    for unit in UNITS:
        result = measure(model, SMOOTHED, samples, unit)
        assert (result.unit, result.count, result.normalised) == (unit, expected[unit], True)


def test_padding_with_a_gradient_does_not_count():
    """As in a model that lets padding leak into its loss."""
    gradient = torch.tensor([[[1.0], [9.0]], [[-3.0], [9.0]], [[float("nan")], [9.0]]])  # T x B x H
    real = torch.tensor([[True, False], [True, False], [False, False]])
    expected = {"token": [4.0, 2.0], "sentence": [2.0, 1.0], "batch": [2.0, 1.0]}
    assert {unit: sum_units(gradient, real, unit).tolist() for unit in UNITS} == expected


def test_units_differ():
    model = model_of("transformer")
    results = [importance_of(model, "transformer", unit=unit, normalise=True) for unit in UNITS]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert max(abs(results[one][head] - results[other][head]) for head in results[0]) > 1e-2


# --- normalisation --------------------------------------------------------------------------------


def test_each_attention_module_has_norm_one():
    model = model_of("lite_transformer")
    with masked(model, parse_heads("E:2:1,2")):
        plain = importance_of(model, "lite_transformer")
        scaled = importance_of(model, "lite_transformer", normalise=True)
    for attention in attentions(model):
        before = torch.tensor([plain[head] for head in attention.names()], dtype=torch.double)
        after = torch.tensor([scaled[head] for head in attention.names()], dtype=torch.double)
        if attention.place == ("E", 2):
            assert not before.any() and not after.any()
        else:
            assert_close(after, before / before.norm())


# --- masked and removed heads ---------------------------------------------------------------------

LOST = {
    "lite_transformer": "E:1:2 A:1:1,3 D:1:1,2",
    "transformer": "E:1:1,4 A:1:1-3 D:1:2",
    "transformer_lm": "D:1:1,3",
    "roberta": "E:1:2-4",
}


@pytest.mark.parametrize("kind", LOST)
def test_masked_heads_score_zero_and_removed_ones_nothing(kind):
    model, lost = model_of(kind), parse_heads(LOST[kind])
    whole = importance_of(model, kind)
    with masked(model, lost):
        found = importance_of(model, kind)
    kept = {head: score for head, score in found.items() if head not in lost}
    assert list(found) == list(whole) and all(found[head] == 0 for head in lost)
    assert max(abs(kept[head] - whole[head]) for head in kept) > 1e-3
    assert_same(importance_of(model, kind), whole)  # the mask is gone

    remove_heads_(model, lost)
    assert_same(importance_of(model, kind), kept)


def test_an_encoder_that_the_loss_does_not_see():
    arch = "no cross-attention"
    model = randomise(make(arch)).double()
    scores = measure(model, SMOOTHED, batches_of("transformer", 3)).scores
    assert all((score == 0) == (head.part == "E") for head, score in scores.items())
