"""Heat maps show the scores they are given, all of them, large enough to read."""

import math

import pytest

from lite_transformer_plugin.heads.heat_maps import heat_maps
from lite_transformer_plugin.heads.names import PARTS, Head, parse_heads

pytest.importorskip("matplotlib")

SCORES = dict.fromkeys(parse_heads("E:1:1-4 E:2:1-2 D:1:1-3"), 0.25)
SCORES |= {Head("E", 1, 1): 0.5, Head("E", 1, 2): 0.124, Head("E", 1, 3): 0.0, Head("E", 1, 4): 1.0}


def panels(figure):
    """The panels that have a title: those of parts, not the colour bar."""
    return {panel.get_title("left"): panel for panel in figure.axes if panel.get_title("left")}


def cells(panel):
    """What stands in the cells, by layer and head."""
    return {tuple(reversed(text.get_position())): text for text in panel.texts}


def cell_texts(figure, part):
    found = cells(panels(figure)[f"{part}: {PARTS[part]}"])
    return {place: text.get_text() for place, text in found.items()}


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def test_a_heat_map_has_a_panel_for_each_part_there_is():
    figure = heat_maps(SCORES, "a title")
    assert list(panels(figure)) == ["E: encoder self-attention", "D: decoder self-attention"]
    assert figure.get_suptitle() == "a title"
    everything = heat_maps(SCORES | {Head("A", 1, 1): 0.1}, "a title")
    assert [title[0] for title in panels(everything)] == ["E", "A", "D"]


def test_every_score_stands_in_its_cell():
    figure = heat_maps(SCORES, "")
    assert cell_texts(figure, "E") == {
        **{(1, 1): "0.50", (1, 2): "0.12", (1, 3): "0.00", (1, 4): "1.00"},
        **{(2, 1): "0.25", (2, 2): "0.25"},
    }
    assert cell_texts(figure, "D") == {(1, 1): "0.25", (1, 2): "0.25", (1, 3): "0.25"}


def test_the_first_layer_is_on_top_and_cells_have_one_size():
    figure = heat_maps(SCORES, "")
    figure.draw_without_rendering()
    sizes = []
    for panel in panels(figure).values():
        (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
        assert bottom > top and left < right
        sizes.append(panel.bbox.size / [right - left, bottom - top])
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


@pytest.mark.parametrize(
    "factor, texts, unit",
    [
        (2e-6, ["1.00", "0.25", "0.00", "2.00"], r"($\times\,10^{-6}$)"),
        (0.05, ["2.50", "0.62", "0.00", "5.00"], r"($\times\,10^{-2}$)"),
        (2, ["1.00", "0.25", "0.00", "2.00"], ""),
        (20, ["10.0", "2.5", "0.0", "20.0"], ""),
        (500, ["250", "62", "0", "500"], ""),
        (5e4, ["2.50", "0.62", "0.00", "5.00"], r"($\times\,10^{4}$)"),
    ],
)
def test_scores_of_any_size_have_three_digits(factor, texts, unit):
    scores = {head: score * factor for head, score in SCORES.items()}
    figure = heat_maps(scores, "", "importance")
    assert list(cell_texts(figure, "E").values())[:4] == texts
    assert figure.axes[-1].get_xlabel() == f"importance {unit}".strip()


def test_differences_have_signs_and_colours_to_both_sides_of_zero():
    heads = parse_heads("A:1:1-4")
    scores = dict(zip(heads, [-1.0, 0.5, -0.001, 1.0], strict=True))
    figure = heat_maps(scores, "", signed=True, significant=heads[:1])
    texts = list(cells(panels(figure)["A: encoder-decoder attention"]).values())
    assert [text.get_text() for text in texts] == ["\N{MINUS SIGN}1.00*", "+0.50", "0.00", "+1.00"]
    assert [text.get_fontweight() for text in texts] == ["bold", *["normal"] * 3]
    assert legend(figure) == ["p < 0.01"]
    low, high = figure.axes[-1].get_xlim()
    assert low == -high
    red, _, white, blue = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert red[0] > 2 * red[2] and blue[2] > 2 * blue[0] and min(white) > 0.95


def test_signed_scores_are_taken_for_differences():
    figure = heat_maps({Head("E", 1, 1): 0.5, Head("E", 1, 2): -0.25}, "")
    assert list(cell_texts(figure, "E").values()) == ["+0.50", "\N{MINUS SIGN}0.25"]


def test_one_far_score_leaves_the_others_their_colours():
    heads = [Head("E", layer, 1) for layer in range(1, 41)]
    scores = {head: 0.01 * head.layer for head in heads}
    assert heat_maps(scores, "").axes[-1].get_xlim()[1] == pytest.approx(0.4)
    figure = heat_maps(scores | {heads[0]: 14.0}, "")
    assert figure.axes[-1].get_xlim()[1] < 1.2
    assert cell_texts(figure, "E")[1, 1] == "14.0"


def contrast(one, other):
    """Of two colours, as in WCAG 2: 1 to 21."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    low, high = sorted([luminance(one), luminance(other)])
    return high / low


@pytest.mark.parametrize("signed", [False, True])
def test_figures_can_be_read_on_every_colour(signed):
    from matplotlib.colors import to_rgb

    scores = {Head("E", 1 + i // 10, 1 + i % 10): i - 50 * signed for i in range(101)}
    panel = heat_maps(scores, "", signed=signed).axes[0]
    for patch, text in zip(panel.patches, panel.texts, strict=True):
        assert contrast(patch.get_facecolor(), to_rgb(text.get_color())) > 4.5


def test_removed_and_unmeasured_heads_have_no_figure():
    removed = parse_heads("E:1:2 E:3:4")
    scores = SCORES | {Head("E", 1, 1): math.nan}
    figure = heat_maps(scores, "", removed=removed)
    panel = panels(figure)["E: encoder self-attention"]
    assert set(cells(panel)) == {(1, 3), (1, 4), (2, 1), (2, 2)}
    hatched = [patch for patch in panel.patches if patch.get_hatch()]
    assert [(p.get_center()[1], p.get_center()[0]) for p in hatched] == [(1, 2), (3, 4)]
    assert len(panel.patches) == 7
    assert legend(figure) == ["removed", "not measured"]
    assert legend(heat_maps(SCORES, "")) == []


@pytest.mark.parametrize("layers, heads, parts", [(1, 1, "D"), (24, 16, "EAD"), (24, 4, "E")])
def test_cells_stay_large_enough_to_read(layers, heads, parts):
    names = [
        Head(part, layer, head)
        for part in parts
        for layer in range(1, layers + 1)
        for head in range(1, heads + 1)
    ]
    figure = heat_maps(dict.fromkeys(names, -10.5), "a title", "a label", significant=names)
    figure.draw_without_rendering()
    for panel in panels(figure).values():
        assert len(panel.texts) == layers * heads
        cell, text = panel.patches[0].get_window_extent(), panel.texts[0].get_window_extent()
        assert text.width < cell.width and text.height < cell.height
    inside = figure.get_tightbbox()
    assert inside.x0 >= 0 and inside.x1 <= figure.get_figwidth()
    assert inside.y0 >= 0 and inside.y1 <= figure.get_figheight()


@pytest.mark.parametrize("scores", [{}, {Head("E", 1, 1): math.nan}, {Head("E", 1, 2): 1.0}])
def test_a_heat_map_needs_a_score(scores):
    with pytest.raises(ValueError, match="no head has a score"):
        heat_maps(scores, "", removed=[Head("E", 1, 2)])
