"""Do the same heads matter on two data sets? A point for each head.

Michel et al. 2019, section 3.4.
"""

import math
from collections.abc import Mapping, Sequence
from operator import truediv
from typing import TYPE_CHECKING, NamedTuple

from .. import report
from ..metrics import METRICS, Metric
from .names import PARTS, Head, sort_heads
from .pictures import KNOWN, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def correlation(
    pairs: Mapping[Head, tuple[float, float]],
    r: float,
    p: float,
    names: tuple[str, str],
    title: str,
    labelled: int = 6,
    metric: Metric = METRICS["bleu"],
) -> "Figure":
    """What the removal of each head changes on two data sets, a point for each head.

    Args:
        pairs: differences in the score on the first and on the second set.
        r: Pearson's correlation of them.
        p: its two-sided p-value.
        names: of the two data sets.
        labelled: so many heads, those farthest from no difference, have their names beside them.
        metric: what the score is.

    Raises:
        ValueError: if no head has a difference on both sets.
        ModuleNotFoundError: without matplotlib.
    """
    known = {h: pairs[h] for h in sort_heads(pairs) if all(map(math.isfinite, pairs[h]))}
    if not known:
        raise ValueError("no head has a difference on both sets: there is nothing to compare")
    figure = report.new_figure(5.6, 5.9)
    panel = figure.subplots()
    figure.suptitle(title)
    _scatter(panel, known)
    x, y = (metric.difference(name) for name in names)
    panel.set(xlabel=x, ylabel=y)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    _write_in_corner(panel, f"r = {r:.2f}\n{chance}\n{len(known)} heads", list(known.values()))
    figure.draw_without_rendering()  # now it is known how far points are from each other
    _name_extremes(panel, known, labelled)
    return figure


def _scatter(panel: "Axes", pairs: Mapping[Head, tuple[float, float]]) -> None:
    for part, marker in zip(PARTS, MARKERS, strict=False):
        points = [pair for head, pair in pairs.items() if head.part == part]
        if points:
            style = dict(s=36, color=KNOWN[part], alpha=0.75, edgecolors="white", linewidths=0.5)
            label = f"{part}: {PARTS[part]}"
            panel.scatter(*zip(*points, strict=True), marker=marker, label=label, **style)
    panel.axhline(0, color="#404040", linewidth=0.8, zorder=0)
    panel.axvline(0, color="#404040", linewidth=0.8, zorder=0)
    panel.grid(alpha=0.25)
    panel.margins(0.12)


def _write_in_corner(panel: "Axes", text: str, points: Sequence[tuple[float, float]]) -> None:
    """Write into the corner with the fewest points, the upper left one if it is as good."""
    to_panel = panel.transData - panel.transAxes
    places = to_panel.transform(points)  # 0 to 1 from left to right and from bottom to top

    def crowd(corner: tuple[int, int]) -> int:
        return sum(abs(x - corner[0]) < 0.3 and abs(y - corner[1]) < 0.2 for x, y in places)

    x, y = min([(0, 1), (1, 0), (1, 1), (0, 0)], key=crowd)
    where = dict(transform=panel.transAxes, ha=("left", "right")[x], va=("bottom", "top")[y])
    box = dict(facecolor="white", edgecolor="none", alpha=0.8, pad=3)
    text = text.replace("-", "\N{MINUS SIGN}")
    panel.text(0.03 + 0.94 * x, 0.03 + 0.94 * y, text, bbox=box, **where)


def _name_extremes(panel: "Axes", pairs: Mapping[Head, tuple[float, float]], count: int) -> None:
    """Names beside the farthest points, where there is room and no doubt which point is meant."""
    widest = [max(abs(pair[i]) for pair in pairs.values()) or 1.0 for i in (0, 1)]
    far = sorted(pairs, key=lambda head: -math.hypot(*map(truediv, pairs[head], widest)))
    scale = 72 / panel.figure.dpi  # from pixels to points
    places = {head: scale * panel.transData.transform(pairs[head]) for head in pairs}
    taken = [_Box(x, y, 5, 5) for x, y in places.values()]
    frame = _Box(*(scale * (panel.bbox.min + panel.bbox.max) / 2), *(scale * panel.bbox.size / 2))
    for head in far[:count]:
        x, y = places[head]
        half = 2.7 * len(str(head))
        alone = sum(_Box(x, y, 2, 2).meets(point) for point in taken[: len(pairs)]) == 1
        for right, up in ((6 + half, 0), (-6 - half, 0), (0, 10), (0, -10)):
            box = _Box(x + right, y + up, half, 4)
            if alone and box.within(frame) and not any(map(box.meets, taken)):
                style = dict(fontsize=8, textcoords="offset points", ha="center", va="center")
                panel.annotate(str(head), pairs[head], (right, up), **style)
                taken.append(box)
                break


class _Box(NamedTuple):
    """A rectangle, in points: its centre, half its width and half its height."""

    x: float
    y: float
    wide: float
    high: float

    def meets(self, other: "_Box") -> bool:
        across, upright = abs(self.x - other.x), abs(self.y - other.y)
        return across < self.wide + other.wide and upright < self.high + other.high

    def within(self, other: "_Box") -> bool:
        across, upright = abs(self.x - other.x), abs(self.y - other.y)
        return across <= other.wide - self.wide and upright <= other.high - self.high
