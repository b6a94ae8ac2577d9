"""Pictures of attention maps: single heads or means over heads, all layers on one sheet.

A row of a map is a query, a column a key, the colour the weight. Two models stand side by side.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from .. import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage

FEW = 6  # panels up to which each has its words along the axes
SMALL = 0.85  # inches, the side of a panel without words
WORD = 0.17  # inches of a word along an axis
SIDES = (2.2, 9.0)  # inches, the least and the most of a panel with words
MARGIN = 0.9  # inches for the words themselves
BAR = 0.9  # inches of the scale of colours
LONGEST_WORD = 14  # characters


class Panel(NamedTuple):
    """One map: the weights (T, S) of a head or a mean, with the words of its axes."""

    title: str
    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]


Block = Sequence[Sequence[Panel]]  # rows of panels, as a rule a row for each layer


def map_sheet(blocks: Mapping[str, Block], title: str) -> "Figure":
    """The maps of one model, or of two side by side, by the models' names.

    Up to six panels have their words along the axes, more are small. All share one scale, on which
    a quarter of the weight has half of the colour, so that weak patterns show.

    Raises:
        ValueError: if there is no map.
        ModuleNotFoundError: without matplotlib.
    """
    panels = [panel for block in blocks.values() for row in block for panel in row]
    if not panels:
        raise ValueError("there is no attention map to draw")
    with_words = len(panels) <= FEW
    sizes = [_inches(block, with_words) for block in blocks.values()]
    widths, height = [width for width, _ in sizes], max(height for _, height in sizes)
    figure = report.new_figure(max(sum(widths) + BAR, 0.085 * len(title) + 0.5), height + 0.9)
    figure.suptitle(title, fontsize="medium")
    grid = dict(width_ratios=[*widths, BAR], squeeze=False)
    *parts, bar = figure.subfigures(1, len(blocks) + 1, **grid)[0]
    for part, (name, block) in zip(parts, blocks.items(), strict=True):
        image = _draw_block(part, block, with_words)
        part.suptitle(name if len(blocks) > 1 else "", fontsize="medium")
    scale = bar.add_axes((0.05, 0.5 - 1.2 / height, 0.18, 2.4 / height))
    figure.colorbar(image, cax=scale, ticks=[0, 0.05, 0.25, 0.5, 1]).set_label("weight")
    return figure


def _inches(block: Block, with_words: bool) -> tuple[float, float]:
    """Width and height of a block."""
    columns = max(map(len, block))
    if not with_words:
        return columns * SMALL + 0.3, len(block) * (SMALL + 0.22)
    widest = max(len(panel.keys) for row in block for panel in row)
    highest = sum(max(_side(len(panel.queries)) for panel in row) + MARGIN for row in block)
    return columns * (_side(widest) + MARGIN), highest


def _side(words: int) -> float:
    return min(max(words * WORD, SIDES[0]), SIDES[1])


def _draw_block(part: "SubFigure", block: Block, with_words: bool) -> "AxesImage":
    columns = max(map(len, block))
    grid = part.subplots(len(block), columns, squeeze=False)
    for i, row in enumerate(block):
        for axes in grid[i][len(row) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid[i], row, strict=False):
            image = _draw(axes, panel, with_words)
    return image


def _draw(axes: "Axes", panel: Panel, with_words: bool) -> "AxesImage":
    from matplotlib.colors import PowerNorm

    weights = panel.weights.detach().float().cpu().numpy()
    colours = dict(cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    image = axes.imshow(weights, aspect="auto" if not with_words else "equal", **colours)
    axes.set_title(panel.title, fontsize=9 if with_words else 6.5, pad=3)
    if not with_words:
        axes.set_xticks([])
        axes.set_yticks([])
        return image
    axes.set_xticks(range(len(panel.keys)), [*map(_short, panel.keys)], rotation=90, fontsize=7)
    axes.set_yticks(range(len(panel.queries)), [*map(_short, panel.queries)], fontsize=7)
    axes.tick_params(length=0)
    return image


def _short(word: str) -> str:
    """A word as a tick label: matplotlib reads $ as mathematics."""
    cut = (
        word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
    return cut.replace("$", r"\$")
