"""Pictures of pruning: BLEU over the share of heads removed, also in the course of training.

Michel et al. 2019, sections 4 and 5 (pruning, by part) and 6 (dynamics). Plain data in, figures
out, and these into files. Shares of heads lie between 0 and 1, and are drawn in per cent. Pictures
of single heads are in ``heat_maps.py`` and ``scatter.py``.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import report
from .names import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]  # share of heads removed, BLEU
Band = Sequence[tuple[float, float, float]]  # share, lowest and highest BLEU
Colour = tuple[float, ...]  # red, green, blue, opacity between 0 and 1
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
