"""Figures of attention maps against maps made by hand: on the diagonal, spread, sparse."""

import math

import pytest
import torch
from head_models import KINDS, model_of, net_input
from torch.testing import assert_close

from lite_transformer_plugin.heads.attention_maps import Seen, attention_maps, watch
from lite_transformer_plugin.heads.diagonal import FIGURES, DiagonalMeter, mean, rows, sum_figures
from lite_transformer_plugin.heads.names import Attention, list_heads

N = 6


def figures_of(weights, part: str = "E", real=None) -> dict:
    """Of one head's map (T, S), by the names of the figures."""
    weights = torch.as_tensor(weights, dtype=torch.float)
    queries, keys = (torch.ones(1, n, dtype=torch.bool) for n in weights.shape)
    if real is not None:
        queries = keys = torch.tensor([real])
        weights = weights * queries[0][:, None]
    tokens = [torch.full(x.shape, 5) for x in (queries, keys)]
    attention = Attention(part, 1, torch.nn.Identity(), (1,))
    seen = Seen(attention, weights[None, None], weights, *tokens, queries, keys, None)
    sums = sum_figures(seen)
    return dict(zip(FIGURES, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))


def test_a_map_on_its_diagonal():
    found = figures_of(torch.eye(N))
    evenly = (3 * N - 2) / N**2
    expected = {
        "diagonal": 1.0,
        "diagonal_evenly": evenly,
        "entropy": 0.0,
        "sparsity": 1 - 1 / N,
    }
    assert found == pytest.approx(expected)


def test_two_steps_away_is_not_on_the_diagonal():
    assert figures_of(torch.eye(N).roll(1, dims=1)[: N - 1])["diagonal"] == 1
    assert figures_of(torch.eye(N).roll(2, dims=1)[: N - 2])["diagonal"] == 0


def test_an_even_map():
    found = figures_of(torch.full((10, 10), 0.1))
    assert found["diagonal"] == pytest.approx(found["diagonal_evenly"])
    assert found["entropy"] == pytest.approx(math.log(10))
    assert found["sparsity"] == pytest.approx(0.1)  # nine of ten keys hold 90 %


def test_a_decoder_has_no_later_words_in_sight():
    weights = torch.tril(torch.ones(N, N))
    found = figures_of(weights / weights.sum(1, keepdim=True), part="D")
    assert found["diagonal"] == pytest.approx(found["diagonal_evenly"])
    assert found["entropy"] == pytest.approx(sum(map(math.log, range(1, N + 1))) / N)


def test_padding_does_not_count():
    real = [True] * 4 + [False] * 2
    padded = torch.zeros(N, N)
    padded[:4, :4] = torch.eye(4)
    assert figures_of(padded, real=real) == pytest.approx(figures_of(torch.eye(4)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_has_the_mean_over_its_queries(kind):
    model, sample = model_of(kind), {"net_input": net_input(kind), "id": torch.arange(3)}
    meter = DiagonalMeter(model)
    for _ in range(2):
        watch(model, sample, meter)
    found = meter.result()
    assert list(found) == list_heads(model)
    maps = attention_maps(model, sample)
    for head, figures in found.items():
        weights = maps[head.place][:, head.head - 1]
        counted = weights.sum(2) > 0.5
        entropy = torch.special.entr(weights).sum(2)[counted].mean()
        assert_close(figures["entropy"], entropy.item(), atol=1e-5, rtol=1e-5)
    assert [row["head"] for row in rows("m", found)] == [str(head) for head in found]
    assert mean(found.values())["sparsity"] == pytest.approx(
        sum(f["sparsity"] for f in found.values()) / len(found)
    )


def test_nothing_seen_is_refused():
    with pytest.raises(ValueError, match="no text"):
        DiagonalMeter(model_of("transformer")).result()
