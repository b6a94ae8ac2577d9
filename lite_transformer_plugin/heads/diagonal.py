"""How far attention stays on the diagonal, and on how few words it rests.

Wu et al. 2020, section 4: conventional attention spends itself on the diagonal, that is on
neighbours; in LSRA the convolution takes these over. All figures are means over queries that are no
padding, in teacher-forced passes. What stands at a distance of 0 in each part, and what a decoder
has in sight, says ``roles.py``.

Letters: B sentences, H heads of one attention module, T queries, S keys.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .attention_maps import Seen, sum_over_processes
from .names import Head, Place, attentions, sort_heads
from .roles import sight

FIGURES = {
    "diagonal": "share of the weight on keys at most 1 position from the query, |i - j| <= 1",
    "diagonal_evenly": "the same, were all keys in sight looked at alike",
    "entropy": "of the weights, in nats",
    "sparsity": "1 - (fewest keys that hold 90 % of the weight) / (keys in sight)",
}
NEAR = 1  # positions
HELD = 0.9  # of the weight

Figures = dict[str, float]  # by the names of FIGURES


class DiagonalMeter:
    """A watcher (see ``attention_maps.watch``) that adds up the figures of every head."""

    def __init__(self, model: nn.Module):
        device = next(model.parameters()).device
        self.attentions = [a for a in attentions(model) if a.heads]
        self.totals: dict[Place, Tensor] = {  # a row for each figure, behind the sums a count
            a.place: torch.zeros(len(FIGURES), len(a.heads) + 1, dtype=torch.double, device=device)
            for a in self.attentions
        }

    def __call__(self, seen: Seen) -> None:
        self.totals[seen.attention.place] += sum_figures(seen)

    def result(self) -> dict[Head, Figures]:
        """Means over all processes, each of which must ask for them; heads are sorted.

        Raises:
            ValueError: if nothing was seen.
        """
        found, sums = {}, sum_over_processes(self.totals)
        for attention in self.attentions:
            *columns, counts = sums[attention.place].t().tolist()
            if not counts[0]:
                raise ValueError("there is no text to measure attention on")
            for head, column in zip(attention.names(), columns, strict=True):
                means = (total / count for total, count in zip(column, counts, strict=True))
                found[head] = dict(zip(FIGURES, means, strict=True))
        return {head: found[head] for head in sort_heads(found)}


def sum_figures(seen: Seen) -> Tensor:
    """Sums of the figures over one batch, and behind them what to divide by: (F, H + 1)."""
    offset, visible = sight(seen)
    keys, near = visible.sum(2), (offset.abs() <= NEAR) & visible
    held = seen.weights.sort(dim=3, descending=True).values.cumsum(3)
    fewest = (held < HELD - 1e-6).sum(3) + 1  # (B, H, T)
    evenly = near.sum(2) / keys.clamp(min=1)
    values = (
        (seen.weights * near[:, None]).sum(3),
        evenly[:, None].expand_as(fewest),
        torch.special.entr(seen.weights).sum(3),
        1 - fewest / keys.clamp(min=1)[:, None],
    )
    counted = keys > 0
    sums = [v.double().masked_fill(~counted[:, None], 0.0).sum((0, 2)) for v in values]
    return torch.stack([torch.cat([s, counted.sum().to(s).view(1)]) for s in sums])


def rows(model: str, figures: Mapping[Head, Figures]) -> list[dict[str, Any]]:
    """A row for every head of a model, sorted."""
    return [
        {"model": model, "head": str(head), "part": head.part, "layer": head.layer, **found}
        for head, found in figures.items()
    ]


def mean(figures: Iterable[Figures]) -> Figures:
    """The mean of each figure over heads, at least one."""
    several = list(figures)
    return {name: sum(one[name] for one in several) / len(several) for name in FIGURES}
