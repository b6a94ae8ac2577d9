"""Which weights become zeros: by magnitude within a tensor, by sensitivity between tensors.

A tensor's sensitivity is what a share of zeros in it alone costs in validation loss (Li et al.
2017, "Pruning Filters for Efficient ConvNets", section 3.2; the pruning that the Lite Transformer's
authors name without publishing it). Given these costs, shares are chosen that reach a size at the
least total cost.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

SHARES = (0.2, 0.4, 0.6, 0.8)
STEPS = 20_000  # of the scale on which the bytes that are saved are counted

Costs = Mapping[str, Mapping[float, float]]


def magnitude_mask(weight: Tensor, share: float) -> Tensor:
    """True where a weight stays; the smallest ``share`` of all goes, zeros among them.

    Raises:
        ValueError: for a share outside 0 to 1, 1 excluded.
    """
    check_share(share)
    number = round(share * weight.numel())
    flat = weight.detach().abs().flatten()
    mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    if number:
        mask[flat.argsort(stable=True)[:number]] = False
    return mask.view_as(weight)


def check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"a share of zeros lies from 0 to below 1, not at {share:g}")


def sensitivity(
    weight: Tensor,
    loss: Callable[[], float],
    base: float,
    shares: Sequence[float] = SHARES,
) -> dict[float, float]:
    """By how much ``loss`` rises above ``base`` when shares of this tensor alone are zeros.

    Args:
        weight: of the model that ``loss`` runs; is as before afterwards.
    """
    before, found = weight.detach().clone(), {}
    try:
        for share in shares:
            weight.data.copy_(before * magnitude_mask(before, share))
            found[share] = loss() - base
    finally:
        weight.data.copy_(before)
    return found


def fill_in(costs: Mapping[float, float], step: float = 0.05) -> dict[float, float]:
    """Costs at every ``step`` up to the last share measured, by lines between the measurements.

    No zeros cost nothing, and more zeros never cost less: a loss that falls is chance.
    """
    shares = [0.0, *sorted(costs)]
    known = np.maximum.accumulate([0.0] + [costs[share] for share in shares[1:]])
    wanted = np.arange(0, shares[-1] + step / 2, step).round(6)
    return dict(zip(wanted.tolist(), np.interp(wanted, shares, known).tolist(), strict=True))


def allocate(costs: Costs, sizes: Mapping[str, float], target: float) -> dict[str, float]:
    """The share of zeros of each tensor that saves ``target`` in all at the least total cost.

    A knapsack, exact but for what rounding to 20,000ths of it costs.

    Args:
        costs: of each share of each tensor, 0 among the shares.
        sizes: what a share of 1 would save in each tensor, weights or bytes.

    Raises:
        ValueError: if even the largest shares save less, saying how much they do.
    """
    limit = sum(max(costs[name]) * sizes[name] for name in costs)
    if target > limit * (1 + 1e-9):
        raise ValueError(f"{target:.0f} cannot be saved, at most {limit:.0f}")
    if target <= 0:
        return dict.fromkeys(costs, 0.0)
    unit = target / STEPS
    best = np.full(STEPS + 1, np.inf)  # the least cost that saves so many units, or more
    best[0], choices = 0.0, []
    for name in costs:
        best, chosen = _add(best, costs[name], sizes[name] / unit)
        choices.append(chosen)
    # what a share saves is rounded down, so all of it can fall short of the last unit
    place = int(np.flatnonzero(np.isfinite(best))[-1])
    found = {}
    for name, chosen in zip(reversed(list(costs)), reversed(choices), strict=True):
        found[name], place = chosen[0][place].item(), chosen[1][place]
    return {name: found[name] for name in costs}


def _add(
    best: np.ndarray, costs: Mapping[float, float], size: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Costs with one tensor more, and which share of it and which place before led there."""
    result = np.full_like(best, np.inf)
    share_of, came_from = np.zeros(len(best)), np.zeros(len(best), int)
    order = np.argsort(-best, kind="stable")  # where several places lead to one, the cheapest wins
    for share, cost in sorted(costs.items()):
        reached = np.minimum(order + int(share * size), len(best) - 1)
        candidate, origin = np.full_like(best, np.inf), np.zeros(len(best), int)
        candidate[reached], origin[reached] = best[order] + cost, order
        better = candidate < result
        result[better], share_of[better] = candidate[better], share
        came_from[better] = origin[better]
    return result, (share_of, came_from)
