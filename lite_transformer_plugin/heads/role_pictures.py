"""A picture of roles and importance: do the heads that matter have roles?

After Voita et al. 2019, figure 1, which lays the roles of heads over their importance.
"""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from .. import report
from .names import PARTS, Head, sort_heads
from .roles import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# hues of Okabe and Ito, which the colour-blind can tell apart; markers tell them apart in grey, too
STYLES = {
    "positional -1": ("<", "#0072B2"),
    "positional +1": (">", "#56B4E9"),
    "rare words": ("*", "#D55E00"),
    "syntactic": ("o", "#009E73"),
}
SIZE, SIZES = 5.5, {"rare words": 8}  # of markers, in points
NO_ROLE, WITH_ROLE = "#d0d0d0", "#707070"
BAR = 0.17  # inches
MOST_NAMES = 110  # of bars in a panel; with more, names would run into each other


def roles_over_importance(
    importance: Mapping[Head, float], roles: Mapping[Head, Collection[str]], title: str
) -> "Figure":
    """A bar for each head, the most important first, and a marker above it for each of its roles.

    Args:
        importance: of all heads that are to be shown.
        roles: the ``roles.KINDS`` of each head; one without a role may be left out.

    Raises:
        ValueError: if there is no head.
        ModuleNotFoundError: without matplotlib.
    """
    heads = sort_heads(importance)
    if not heads:
        raise ValueError("there is no head whose role could be drawn")
    parts = {p: [head for head in heads if head.part == p] for p in PARTS}
    parts = {p: found for p, found in parts.items() if found}
    bars = max(map(len, parts.values()))
    power = _power(max(importance.values()))
    importance = {head: importance[head] / 10**power for head in heads}
    figure = report.new_figure(min(13.0, max(6.4, BAR * bars + 1.0)), 2.1 * len(parts) + 1.1)
    figure.suptitle(title)
    panels = figure.subplots(len(parts), 1, sharey=True, squeeze=False)[:, 0]
    for panel, (part, found) in zip(panels, parts.items(), strict=True):
        ordered = sorted(found, key=lambda head: -importance[head])
        _bars(panel, importance, roles, ordered)
        _axes(panel, part, ordered, bars, _means(importance, roles, ordered))
        panel.set_ylabel(rf"importance ($\times\,10^{{{power}}}$)" if power else "importance")
    panels[-1].set_xlabel("layer:head, the most important first", loc="right")
    highest = max(importance.values()) or 1.0
    rows = max([len(kinds) for kinds in roles.values()], default=0)
    panels[0].set_ylim(0, highest * (1.06 + 0.13 * rows))
    _legend(figure, roles)
    return figure


def _power(largest: float) -> int:
    """Of ten, to divide by, so that figures are short."""
    return 0 if largest <= 0 or 0.1 <= largest < 1000 else math.floor(math.log10(largest))


def _bars(
    panel: "Axes",
    importance: Mapping[Head, float],
    roles: Mapping[Head, Collection[str]],
    ordered: Collection[Head],
) -> None:
    heights = [importance[head] for head in ordered]
    colours = [WITH_ROLE if roles.get(head) else NO_ROLE for head in ordered]
    panel.bar(range(len(heights)), heights, color=colours, width=0.8)
    marks: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for x, head in enumerate(ordered):
        kinds = [kind for kind in KINDS if kind in roles.get(head, ())]
        for row, kind in enumerate(kinds):
            marks.setdefault((kind, row), []).append((x, importance[head]))
    for (kind, row), places in marks.items():
        _mark(panel, places, 6 + 9 * row, **_style(kind))


def _mark(
    panel: "Axes", places: Collection[tuple[float, float]], points: float, **style: Any
) -> None:
    """Markers so many points above their places."""
    from matplotlib.transforms import ScaledTranslation

    above = ScaledTranslation(0, points / 72, panel.figure.dpi_scale_trans)
    xy = zip(*places, strict=True)
    panel.plot(*xy, transform=panel.transData + above, clip_on=False, **style)


def _style(kind: str) -> dict[str, Any]:
    marker, colour = STYLES[kind]
    size = SIZES.get(kind, SIZE)
    plain = dict(linestyle="none", markeredgewidth=0)
    return dict(marker=marker, color=colour, markersize=size, **plain)


def _means(
    importance: Mapping[Head, float],
    roles: Mapping[Head, Collection[str]],
    heads: Collection[Head],
) -> str:
    """What the picture shows, in figures."""
    texts = []
    for name, wanted in (("with a role", True), ("without", False)):
        scores = [importance[head] for head in heads if bool(roles.get(head)) == wanted]
        mean = f", mean {sum(scores) / len(scores):#.2g}" if scores else ""
        texts.append(f"{len(scores)} {name}{mean}")
    return "; ".join(texts)


def _axes(panel: "Axes", part: str, ordered: Collection[Head], bars: int, means: str) -> None:
    panel.set_title(f"{part}: {PARTS[part]}", loc="left", fontsize="medium")
    panel.set_title(means, loc="right", fontsize="small")
    panel.set_xlim(-0.7, bars - 0.3)  # the same width of bars in all panels
    panel.spines[["top", "right"]].set_visible(False)
    if len(ordered) > MOST_NAMES:
        panel.set_xticks([])
        return
    names = [f"{head.layer}:{head.head}" for head in ordered]
    panel.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    panel.tick_params(axis="x", length=0)


def _legend(figure: "Figure", roles: Mapping[Head, Collection[str]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for kind in STYLES:
        count = sum(kind in kinds for kinds in roles.values())
        if count:
            label = f"{kind.replace('-', chr(0x2212))} ({count})"
            handles.append(Line2D([], [], label=label, **_style(kind)))
    handles.append(Patch(color=NO_ROLE, label="no role"))
    columns = 5 if figure.get_figwidth() > 8.5 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
