"""Pictures of heads: heat maps of scores, curves of pruning, its dynamics, two data sets compared.

Michel et al. 2019, sections 3 (ablation, other data), 4 and 5 (pruning, by part) and 6 (dynamics).
Plain data in, figures out. Shares of heads lie between 0 and 1, and are drawn in per cent.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import report
from .names import PARTS, Head, sort_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]  # share of heads removed, BLEU
Colour = tuple[float, ...]  # red, green, blue, opacity between 0 and 1
Band = Sequence[tuple[float, float, float]]  # share, lowest and highest BLEU
# hues of Okabe and Ito, which the colour-blind can tell apart
KNOWN = {"E": "#0072B2", "A": "#D55E00", "D": "#009E73", "random": "#7f7f7f"}
HUES = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00", "#009E73", "#000000")
MARKERS = "osD^vPX*"


def save(figure: "Figure", stem: str | Path, force: bool = False) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``; returns their paths.

    Raises:
        FileExistsError, FileNotFoundError, IsADirectoryError: as ``report.check_outputs``.
    """
    paths = [Path(f"{stem}{suffix}") for suffix in (".png", ".svg")]
    report.check_outputs(paths, force)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # each drawing would move the panels a little
    for path in paths:
        report.save_figure(figure, path, force)
    return paths


# --- heat maps ------------------------------------------------------------------------------------

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


# --- curves ---------------------------------------------------------------------------------------


def curves(
    series: Mapping[str, Curve],
    title: str,
    unpruned: float | None = None,
    bands: Mapping[str, Band] | None = None,
    score: str = "BLEU",
) -> "Figure":
    """BLEU over the share of heads removed, a line for each name.

    Args:
        series: points by the name of an order or part; "E", "A", "D" and "random" always have the
            same colours, and parts their full names.
        unpruned: BLEU of the whole model, a thin line.
        bands: for some of these names the lowest and the highest BLEU, as over several seeds.
        score: what it is, with its unit if it has one.

    Raises:
        ValueError: if there is no point, a share outside 0 to 1, or a band without its line.
        ModuleNotFoundError: without matplotlib.
    """
    bands = bands or {}
    _check_curves({**series, **{f"band of {name}": band for name, band in bands.items()}})
    for name in bands:
        if name not in series:
            raise ValueError(f"there is a band of {name!r} but no line: {', '.join(series)}")
    figure = report.new_figure(6.4, 4.3 + 0.22 * math.ceil(len(series) / 2))
    panel = figure.subplots()
    figure.suptitle(title)
    colours = _hues(series)
    for (name, curve), marker in zip(series.items(), _cycle(MARKERS, series), strict=True):
        _band(panel, bands.get(name, ()), colours[name])
        label = f"{name}: {PARTS[name]}" if name in PARTS else name
        label += " (band: lowest to highest)" if name in bands else ""
        _line(panel, curve, color=colours[name], marker=marker, label=label)
    _share_axis(panel, score)
    if unpruned is not None:
        _level(panel, unpruned, f"unpruned\n{unpruned:.2f}")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def dynamics(
    series: Mapping[str, Curve],
    title: str,
    unpruned: Mapping[str, float] | None = None,
    score: str = "BLEU",
) -> "Figure":
    """Pruning at stages of training: the share of its BLEU that each checkpoint keeps, and BLEU.

    Args:
        series: points by the checkpoint's name, from early (light) to late (dark).
        unpruned: BLEU of each whole checkpoint; without it, that of the point at share 0.

    Raises:
        ValueError: if there is no point, a share outside 0 to 1, or no BLEU of a whole checkpoint.
        ModuleNotFoundError: without matplotlib.
    """
    _check_curves(series)
    bases = {name: _unpruned(name, curve, unpruned or {}) for name, curve in series.items()}
    figure = report.new_figure(9.6, 4.4)
    kept, absolute = figure.subplots(1, 2)
    figure.suptitle(title)
    styles = zip(series.items(), _stages(len(series)), _cycle(MARKERS, series), strict=True)
    for (name, curve), colour, marker in styles:
        if bases[name] > 0:  # of nothing no share can be kept
            shares = [(share, 100 * bleu / bases[name]) for share, bleu in curve]
            _line(kept, shares, color=colour, marker=marker)
        _line(absolute, curve, color=colour, marker=marker, label=name)
    _share_axis(kept, f"share of unpruned {score} kept (%)")
    _share_axis(absolute, score)
    _level(kept, 100)
    figure.legend(loc="outside right upper", title="checkpoint", frameon=False)
    return figure


def _check_curves(curves: Mapping[str, Sequence[tuple[float, ...]]]) -> None:
    scores = [score for points in curves.values() for _, *ys in points for score in ys]
    if not any(map(math.isfinite, scores)):
        raise ValueError("there are no scores to draw a curve of")
    for name, points in curves.items():
        for share, *_ in points:
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: a share of heads lies between 0 and 1, not at {share}")


def _unpruned(name: str, curve: Curve, known: Mapping[str, float]) -> float:
    bleu = known.get(name, dict(curve).get(0))
    if bleu is None:
        raise ValueError(f"{name}: its score without pruning is needed, a point at share 0")
    return bleu


def _hues(names: Collection[str]) -> dict[str, str]:
    """Known names have their own; the others those that are left, in order."""
    left = [hue for hue in HUES if hue not in {KNOWN.get(name) for name in names}]
    others = [name for name in names if name not in KNOWN]
    return {**KNOWN, **dict(zip(others, _cycle(left, others), strict=True))}


def _stages(count: int) -> list[Colour]:
    """From light to dark, without the lightest, which is hard to see on white."""
    from matplotlib import colormaps

    light = [i / max(1, count - 1) for i in reversed(range(count))]
    return [colormaps["viridis"](0.88 * share) for share in light]


def _cycle(items: Sequence[str], names: Collection[str]) -> list[str]:
    return [items[i % len(items)] for i in range(len(names))]


def _line(panel: "Axes", curve: Curve, **style: Any) -> None:
    points = sorted((100 * share, score) for share, score in curve)
    xy = ([point[i] for point in points] for i in (0, 1))
    panel.plot(*xy, linewidth=1.6, markersize=5, clip_on=False, **style)


def _band(panel: "Axes", band: Band, colour: str) -> None:
    if band:
        shares, low, high = zip(*sorted(band), strict=True)
        panel.fill_between(
            [100 * s for s in shares], low, high, color=colour, alpha=0.2, linewidth=0
        )


def _level(panel: "Axes", height: float, text: str = "") -> None:
    """A thin line across the panel, with its name in the margin, where it covers no curve."""
    panel.axhline(height, color="#404040", linewidth=0.8, zorder=1)
    panel.text(1.02, height, text, transform=panel.get_yaxis_transform(), va="center", fontsize=9)


def _share_axis(panel: "Axes", score: str) -> None:
    panel.set(xlim=(-2, 102), xticks=range(0, 101, 20), xlabel="heads removed (%)", ylabel=score)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_ylim(0, max(1, panel.get_ylim()[1]))  # nothing but noise fills the panel


# --- two data sets --------------------------------------------------------------------------------


def correlation(
    pairs: Mapping[Head, tuple[float, float]],
    r: float,
    p: float,
    names: tuple[str, str],
    title: str,
    labelled: int = 6,
) -> "Figure":
    """What the removal of each head changes on two data sets, a point for each head.

    Args:
        pairs: differences in BLEU on the first and on the second set.
        r: Pearson's correlation of them.
        p: its two-sided p-value.
        names: of the two data sets.
        labelled: so many heads, those farthest from no difference, have their names beside them.

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
    x, y = (f"difference in BLEU on {name} (points)" for name in names)
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
