"""A score over the share of heads removed (Michel et al. 2019, section 4.2 and figure 3)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..evaluation import Translator
from ..forward_passes import ForwardPass
from ..scoring import Bleu
from ..summed_metrics import SummedMetric
from .gates import masked
from .names import Head, format_heads
from .ordering import number_of, stepwise

Scores = Mapping[Head, float]


class Point(NamedTuple):
    """One point of a curve."""

    share: float  # of the heads in question, 0 to 1
    removed: list[Head]
    score: float

    def row(self, metric: str = "bleu") -> dict[str, Any]:
        """Figures, that of the metric under its name, and the names of the heads that are gone."""
        return {
            "share": self.share,
            "heads_removed": len(self.removed),
            metric: self.score,
            "pruned_heads": format_heads(self.removed),
        }


def removals(
    measure: Callable[[Sequence[Head]], Scores],
    heads: Sequence[Head],
    shares: Iterable[float],
    minimum: int = 0,
) -> list[tuple[float, list[Head]]]:
    """Which heads are gone at each share; those of a smaller share are part of a larger one.

    Args:
        measure: scores of the heads, given those removed so far; see ``ordering.stepwise``.
        heads: that may go; a share is one of them.
        shares: in any order; they come back ascending.

    Raises:
        ValueError: as ``ordering.stepwise``.
    """
    ascending = sorted(set(shares))
    counts = [number_of(share, len(heads)) for share in ascending]
    parts = {head.part for head in heads}
    steps = list(stepwise(measure, counts, minimum, parts))
    return [(share, removed) for share, (_, removed) in zip(ascending, steps, strict=True)]


def curve(
    translator: Translator | ForwardPass,
    scored: Bleu | SummedMetric,
    steps: Iterable[tuple[float, list[Head]]],
    known: Mapping[str, float] | None = None,
    on_result: Callable[[str, float], None] | None = None,
) -> list[Point]:
    """The score of the model with these heads masked, which is that of the model without them.

    Several processes share the sentences of each point.

    Args:
        known: scores of points from an earlier run that was stopped, by the names of their heads.
        on_result: is given each new one, on every process.
    """
    points, found = [], dict(known or {})
    for share, removed in steps:
        key = format_heads(removed)
        if key not in found:
            with masked(translator.model, removed) if removed else nullcontext():
                found[key] = scored.score(translator.run(shared=True))
            if on_result is not None:
                on_result(key, found[key])
        points.append(Point(share, removed, found[key]))
    return points
