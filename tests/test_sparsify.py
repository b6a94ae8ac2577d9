"""Shares of zeros: the smallest weights go, and the cheapest shares are found."""

import itertools
import random

import pytest
import torch
from torch import nn

from lite_transformer_plugin.compression import allocate, fill_in, magnitude_mask, sensitivity


@pytest.mark.parametrize("share, gone", [(0, 0), (0.25, 3), (0.5, 6), (0.9, 11)])
def test_the_smallest_go(share, gone):
    weight = torch.tensor([[1.0, -5, 2, -0.5], [7, 3, -4, 6], [0.1, 9, -8, 10]])
    mask = magnitude_mask(weight, share)
    assert mask.shape == weight.shape and int((~mask).sum()) == gone
    if gone:
        assert weight[~mask].abs().max() < weight[mask].abs().min()


@pytest.mark.parametrize("share", [-0.1, 1, 1.5])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="share of zeros lies from 0 to below 1"):
        magnitude_mask(torch.ones(4), share)


def test_equal_weights_go_in_the_number_asked_for():
    assert int(magnitude_mask(torch.ones(10), 0.3).sum()) == 7


def test_sensitivity_is_what_a_tensor_alone_costs():
    model = nn.Linear(4, 1, bias=False)
    model.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    before = model.weight.detach().clone()
    found = sensitivity(model.weight, lambda: -float(model.weight.sum()), -10.0, (0.25, 0.5))
    assert found == {0.25: 1.0, 0.5: 3.0}
    assert torch.equal(model.weight, before)


def test_sensitivity_leaves_the_weights_when_it_fails():
    weight = nn.Parameter(torch.arange(1.0, 5))

    def fails() -> float:
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError):
        sensitivity(weight, fails, 0.0)
    assert torch.equal(weight, torch.arange(1.0, 5))


def test_costs_between_the_measured_ones():
    found = fill_in({0.2: -1.0, 0.4: 2.0, 0.6: 1.0}, step=0.1)
    assert found == pytest.approx(
        {0.0: 0, 0.1: 0, 0.2: 0, 0.3: 1, 0.4: 2, 0.5: 2, 0.6: 2}
    )  # more zeros never cost less


def brute_force(costs: dict, sizes: dict, target: float) -> float:
    names, best = list(costs), float("inf")
    for shares in itertools.product(*(costs[name] for name in names)):
        saved = sum(s * sizes[n] for s, n in zip(shares, names, strict=True))
        if saved >= target - 1e-6:
            best = min(best, sum(costs[n][s] for s, n in zip(shares, names, strict=True)))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_as_good_as_the_best_of_all_choices(seed):
    draw = random.Random(seed)
    sizes = {name: draw.choice([100, 400, 1000]) for name in "abcd"}
    costs = {
        name: fill_in({0.2: draw.random(), 0.4: 3 * draw.random(), 0.8: 9 * draw.random()}, 0.2)
        for name in sizes
    }
    target = draw.uniform(0.1, 0.75) * sum(sizes.values())
    shares = allocate(costs, sizes, target)
    assert sum(shares[name] * sizes[name] for name in sizes) >= target
    found = sum(costs[name][shares[name]] for name in sizes)
    # what a share saves is rounded down to a twenty-thousandth of the target
    assert found <= brute_force(costs, sizes, target * 1.0005) + 1e-9


def test_none_and_too_many():
    costs, sizes = {"a": {0.0: 0.0, 0.8: 1.0}}, {"a": 100}
    assert allocate(costs, sizes, 0) == {"a": 0.0}
    assert allocate(costs, sizes, 80) == {"a": 0.8}
    with pytest.raises(ValueError, match="90 cannot be saved, at most 80"):
        allocate(costs, sizes, 90)
