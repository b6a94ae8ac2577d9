"""Heat maps of the scores of heads: importance, or what is lost without each of them.

Michel et al. 2019, section 3 and their tables of single heads.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import report
from .names import PARTS, Head, sort_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

Colour = tuple[float, ...]  # red, green, blue, opacity between 0 and 1
CELL = (0.6, 0.34)  # inches, width and height
BAR = 0.5  # height of the colour bar, in cells
LEAST_COLUMNS = 4  # a panel is at least so wide, for its title
FAR = 3  # times the 95th percentile: scores beyond it do not stretch the colours
BLANKS = {
    "removed": dict(facecolor="#f2f2f2", edgecolor="#a6a6a6", hatch="/////", linewidth=0),
    "not measured": dict(facecolor="#d9d9d9"),
}


def heat_maps(
    scores: Mapping[Head, float],
    title: str,
    label: str = "importance",
    signed: bool = False,
    significant: Collection[Head] = (),
    removed: Collection[Head] = (),
) -> "Figure":
    """A panel for each part, a row for each layer, a column for each head, its score in the cell.

    All panels share one scale of colours. A few scores far outside the others would leave no
    colours for these: then the scale ends before them, and the colour bar has a point there.

    Args:
        scores: by head; one that is not finite is shown as not measured.
        label: what the scores are and in which unit, for the colour bar.
        signed: they are differences: colours to both sides of 0, and signs.
        significant: heads whose score is bold and has an asterisk, for p < 0.01.
        removed: heads that are masked or gone: hatched cells, whatever their score.

    Raises:
        ValueError: if no head has a score.
        ModuleNotFoundError: without matplotlib.
    """
    heads = sort_heads({*scores, *removed})
    shown = {h: scores[h] for h in heads if h not in removed and math.isfinite(scores[h])}
    if not shown:
        raise ValueError("no head has a score: there is nothing to draw a heat map of")
    signed = signed or min(shown.values()) < 0
    power, decimals = (0, 2) if signed else _digits(max(shown.values()))
    shown = {head: score / 10**power for head, score in shown.items()}
    label += rf" ($\times\,10^{{{power}}}$)" if power else ""
    figure, panels, bar = _heat_panels(heads, title, label)
    colours, ends = _colours(shown.values(), signed)
    for head, score in shown.items():
        text = _figure(score, decimals, signed)
        _score_cell(panels[head.part], head, text, colours.to_rgba(score), head in significant)
    blank = {h: "removed" if h in removed else "not measured" for h in heads if h not in shown}
    for head, kind in blank.items():
        _cell(panels[head.part], head, **BLANKS[kind])
    figure.colorbar(colours, cax=bar, extend=ends, orientation="horizontal", label=label)
    _heat_legend(figure, set(blank.values()), any(head in significant for head in shown))
    return figure


def _digits(largest: float) -> tuple[int, int]:
    """Power of ten to divide by, and decimals, so that figures have three digits."""
    digits = math.floor(math.log10(largest or 1.0))
    return (0, min(2, 2 - digits)) if -1 <= digits <= 2 else (digits, 2)


def _figure(score: float, decimals: int, signed: bool) -> str:
    figure = f"{score:{'+' if signed else ''}.{decimals}f}"
    zero = not float(figure)
    return figure.lstrip("+-") if zero else figure.replace("-", "\N{MINUS SIGN}")


def _colours(scores: Collection[float], signed: bool) -> tuple["ScalarMappable", str]:
    """The scale of colours, and which scores lie beyond its ends, in matplotlib's words."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    sizes = sorted(map(abs, scores))
    usual = FAR * sizes[int(0.95 * (len(sizes) - 1))]
    high = min(sizes[-1], usual) or sizes[-1] or 1.0
    low = -high if signed else 0.0
    beyond = (min(scores) < low, max(scores) > high)
    ends = {(True, False): "min", (False, True): "max", (True, True): "both"}
    colours = ScalarMappable(Normalize(low, high), "RdBu" if signed else "viridis")
    return colours, ends.get(beyond, "neither")


def _heat_panels(heads: Collection[Head], title: str, label: str):
    """A figure, its empty panels by part, and the axes of the colour bar below them.

    Panels stand side by side or below each other, whichever is nearer to the shape of a page.
    """
    rows = {head.part: 0 for head in heads}
    columns = dict.fromkeys(rows, LEAST_COLUMNS)
    for head in heads:
        rows[head.part] = max(rows[head.part], head.layer)
        columns[head.part] = max(columns[head.part], head.head)
    beside = [max(rows.values())], list(columns.values())
    below = list(rows.values()), [max(columns.values())]
    heights, widths = min(beside, below, key=_unlike_a_page)
    width, height = _inches(heights, widths)
    figure = report.new_figure(max(width, 0.1 * len(title), 0.08 * len(label)), height)
    figure.suptitle(title)
    ratios = dict(height_ratios=[*heights, BAR], width_ratios=widths)
    grid = figure.add_gridspec(len(heights) + 1, len(widths), **ratios)
    panels = {}
    for i, part in enumerate(rows):
        row, column = (0, i) if len(widths) > 1 else (i, 0)
        panels[part] = figure.add_subplot(grid[row, column])
        _heat_axes(panels[part], part, [head for head in heads if head.part == part])
        panels[part].set(xlim=(0.5, widths[column] + 0.5), ylim=(heights[row] + 0.5, 0.5))
    return figure, panels, figure.add_subplot(grid[-1, 0])


def _inches(heights: Sequence[int], widths: Sequence[int]) -> tuple[float, float]:
    """Width and height of a figure whose panels have so many cells."""
    width = CELL[0] * sum(widths) + 0.5 * len(widths)
    return width, CELL[1] * (sum(heights) + BAR) + 0.75 * len(heights) + 1.0


def _unlike_a_page(cells: tuple[Sequence[int], Sequence[int]]) -> float:
    width, height = _inches(*cells)
    return abs(math.log(width / height / 1.3))


def _heat_axes(panel: "Axes", part: str, heads: Collection[Head]) -> None:
    panel.set_title(f"{part}: {PARTS[part]}", loc="left", fontsize="medium")
    panel.set_xticks(range(1, max(head.head for head in heads) + 1))
    panel.set_yticks(range(1, max(head.layer for head in heads) + 1))
    panel.set_xlabel("head", loc="left")
    panel.set_ylabel("layer", loc="top")
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _cell(panel: "Axes", head: Head, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    corner = (head.head - 0.48, head.layer - 0.48)
    panel.add_patch(Rectangle(corner, 0.96, 0.96, **style))


def _score_cell(panel: "Axes", head: Head, text: str, colour: Colour, bold: bool) -> None:
    _cell(panel, head, facecolor=colour)
    panel.text(
        head.head,
        head.layer,
        text + "*" * bold,
        color=_readable_on(colour),
        fontsize=8,
        fontweight="bold" if bold else "normal",
        ha="center",
        va="center_baseline",
    ).set_in_layout(False)


def _readable_on(colour: Colour) -> str:
    """Black or white, whichever has more contrast: relative luminance as in WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.179 else "white"


def _heat_legend(figure: "Figure", blanks: Collection[str], significant: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(label=kind, **BLANKS[kind]) for kind in BLANKS if kind in blanks]
    if significant:
        star = dict(marker="$*$", color="black", linestyle="none", markersize=5)
        handles.insert(0, Line2D([], [], label="p < 0.01", **star))
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False)
