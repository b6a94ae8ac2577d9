"""Pictures of heads show the data they are given, all of them, and come out the same each time."""

import math
import sys

import pytest

from lite_transformer_plugin.heads import pictures
from lite_transformer_plugin.heads.names import PARTS, Head, parse_heads

pytest.importorskip("matplotlib")

SCORES = dict.fromkeys(parse_heads("E:1:1-4 E:2:1-2 D:1:1-3"), 0.25)
SCORES |= {Head("E", 1, 1): 0.5, Head("E", 1, 2): 0.124, Head("E", 1, 3): 0.0, Head("E", 1, 4): 1.0}
CURVE = [(0.5, 20.0), (0.0, 30.0), (1.0, 0.0)]


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


# --- heat maps ------------------------------------------------------------------------------------


def test_a_heat_map_has_a_panel_for_each_part_there_is():
    figure = pictures.heat_maps(SCORES, "a title")
    assert list(panels(figure)) == ["E: encoder self-attention", "D: decoder self-attention"]
    assert figure.get_suptitle() == "a title"
    everything = pictures.heat_maps(SCORES | {Head("A", 1, 1): 0.1}, "a title")
    assert [title[0] for title in panels(everything)] == ["E", "A", "D"]


def test_every_score_stands_in_its_cell():
    figure = pictures.heat_maps(SCORES, "")
    assert cell_texts(figure, "E") == {
        **{(1, 1): "0.50", (1, 2): "0.12", (1, 3): "0.00", (1, 4): "1.00"},
        **{(2, 1): "0.25", (2, 2): "0.25"},
    }
    assert cell_texts(figure, "D") == {(1, 1): "0.25", (1, 2): "0.25", (1, 3): "0.25"}


def test_the_first_layer_is_on_top_and_cells_have_one_size():
    figure = pictures.heat_maps(SCORES, "")
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
    figure = pictures.heat_maps(scores, "", "importance")
    assert list(cell_texts(figure, "E").values())[:4] == texts
    assert figure.axes[-1].get_xlabel() == f"importance {unit}".strip()


def test_differences_have_signs_and_colours_to_both_sides_of_zero():
    heads = parse_heads("A:1:1-4")
    scores = dict(zip(heads, [-1.0, 0.5, -0.001, 1.0], strict=True))
    figure = pictures.heat_maps(scores, "", signed=True, significant=heads[:1])
    texts = list(cells(panels(figure)["A: encoder-decoder attention"]).values())
    assert [text.get_text() for text in texts] == ["\N{MINUS SIGN}1.00*", "+0.50", "0.00", "+1.00"]
    assert [text.get_fontweight() for text in texts] == ["bold", *["normal"] * 3]
    assert legend(figure) == ["p < 0.01"]
    low, high = figure.axes[-1].get_xlim()
    assert low == -high
    red, _, white, blue = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert red[0] > 2 * red[2] and blue[2] > 2 * blue[0] and min(white) > 0.95


def test_signed_scores_are_taken_for_differences():
    figure = pictures.heat_maps({Head("E", 1, 1): 0.5, Head("E", 1, 2): -0.25}, "")
    assert list(cell_texts(figure, "E").values()) == ["+0.50", "\N{MINUS SIGN}0.25"]


def test_one_far_score_leaves_the_others_their_colours():
    heads = [Head("E", layer, 1) for layer in range(1, 41)]
    scores = {head: 0.01 * head.layer for head in heads}
    assert pictures.heat_maps(scores, "").axes[-1].get_xlim()[1] == pytest.approx(0.4)
    figure = pictures.heat_maps(scores | {heads[0]: 14.0}, "")
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
    panel = pictures.heat_maps(scores, "", signed=signed).axes[0]
    for patch, text in zip(panel.patches, panel.texts, strict=True):
        assert contrast(patch.get_facecolor(), to_rgb(text.get_color())) > 4.5


def test_removed_and_unmeasured_heads_have_no_figure():
    removed = parse_heads("E:1:2 E:3:4")
    scores = SCORES | {Head("E", 1, 1): math.nan}
    figure = pictures.heat_maps(scores, "", removed=removed)
    panel = panels(figure)["E: encoder self-attention"]
    assert set(cells(panel)) == {(1, 3), (1, 4), (2, 1), (2, 2)}
    hatched = [patch for patch in panel.patches if patch.get_hatch()]
    assert [(p.get_center()[1], p.get_center()[0]) for p in hatched] == [(1, 2), (3, 4)]
    assert len(panel.patches) == 7
    assert legend(figure) == ["removed", "not measured"]
    assert legend(pictures.heat_maps(SCORES, "")) == []


@pytest.mark.parametrize("layers, heads, parts", [(1, 1, "D"), (24, 16, "EAD"), (24, 4, "E")])
def test_cells_stay_large_enough_to_read(layers, heads, parts):
    names = [
        Head(part, layer, head)
        for part in parts
        for layer in range(1, layers + 1)
        for head in range(1, heads + 1)
    ]
    figure = pictures.heat_maps(
        dict.fromkeys(names, -10.5), "a title", "a label", significant=names
    )
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
        pictures.heat_maps(scores, "", removed=[Head("E", 1, 2)])


# --- curves ---------------------------------------------------------------------------------------


def lines(panel):
    """The curves of a panel by their names."""
    found = {line.get_label(): line for line in panel.get_lines()}
    return {name: line for name, line in found.items() if not name.startswith("_")}


def test_curves_are_in_per_cent_and_in_order():
    figure = pictures.curves({"importance": CURVE, "A": CURVE[:2]}, "a title", unpruned=30.0)
    [panel] = figure.axes
    found = lines(panel)
    assert list(found) == ["importance", "A: encoder-decoder attention"] == legend(figure)
    assert list(found["importance"].get_xdata()) == [0, 50, 100]
    assert list(found["importance"].get_ydata()) == [30, 20, 0]
    assert panel.get_ylim()[0] == 0 and panel.get_ylim()[1] > 30
    assert panel.get_xlabel() == "heads removed (%)" and panel.get_ylabel() == "BLEU"
    [level] = [line for line in panel.get_lines() if line.get_label().startswith("_")]
    assert list(level.get_ydata()) == [30, 30]
    assert [text.get_text() for text in panel.texts] == ["unpruned\n30.00"]


def test_series_differ_in_colour_and_marker_and_keep_their_colour():
    names = ["importance", "ablation", "weight norm", "random", "E", "A", "D"]
    [panel] = pictures.curves(dict.fromkeys(names, CURVE), "").axes
    drawn = list(lines(panel).values())
    assert len({line.get_color() for line in drawn}) == len(names)
    assert len({line.get_marker() for line in drawn}) == len(names)
    [alone] = lines(pictures.curves({"D": CURVE}, "").axes[0]).values()
    assert alone.get_color() == drawn[-1].get_color()


def test_a_band_spans_the_lowest_to_the_highest():
    band = [(1.0, 0.0, 5.0), (0.0, 30.0, 30.0)]
    figure = pictures.curves({"random": CURVE}, "", bands={"random": band})
    [panel] = figure.axes
    [filled] = panel.collections
    corners = {tuple(corner) for corner in filled.get_paths()[0].vertices.tolist()}
    assert corners == {(0, 30), (100, 0), (100, 5)}
    assert legend(figure) == ["random (band: lowest to highest)"]


def test_a_missing_score_is_a_gap():
    [panel] = pictures.curves({"x": [(0, 3.0), (0.5, math.nan), (1, 1.0)]}, "").axes
    assert [math.isnan(y) for y in lines(panel)["x"].get_ydata()] == [False, True, False]


def test_the_legend_covers_no_data():
    for figure in (pictures.curves({"x": CURVE}, "", 30.0), pictures.dynamics({"x": CURVE}, "")):
        figure.draw_without_rendering()
        [box] = figure.legends
        for panel in figure.axes:
            assert not panel.bbox.overlaps(box.get_window_extent())


@pytest.mark.parametrize("draw", [pictures.curves, pictures.dynamics])
def test_curves_that_cannot_be_drawn_are_refused(draw):
    for nothing in ({}, {"x": []}, {"x": [(0, math.nan)]}):
        with pytest.raises(ValueError, match="no scores"):
            draw(nothing, "")
    for share in (-0.1, 10, math.nan):
        with pytest.raises(ValueError, match="x: a share of heads lies between 0 and 1"):
            draw({"x": [(0, 1.0), (share, 1.0)]}, "")


def test_a_band_needs_its_line():
    with pytest.raises(ValueError, match="band of 'random'"):
        pictures.curves({"x": CURVE}, "", bands={"random": [(0, 1.0, 2.0)]})


# --- dynamics -------------------------------------------------------------------------------------


def test_dynamics_show_what_each_checkpoint_keeps():
    early = [(0.0, 10.0), (0.5, 4.0)]
    figure = pictures.dynamics({"epoch 1": early, "epoch 10": CURVE}, "a title")
    kept, absolute = figure.axes
    assert [list(line.get_ydata()) for line in kept.get_lines()[:2]] == [
        pytest.approx([100, 40]),
        pytest.approx([100, 200 / 3, 0]),
    ]
    assert list(lines(absolute)["epoch 1"].get_ydata()) == [10, 4]
    assert kept.get_ylabel() == "share of unpruned BLEU kept (%)"
    assert absolute.get_ylabel() == "BLEU"
    assert legend(figure) == ["epoch 1", "epoch 10"]


def test_later_checkpoints_are_darker():
    figure = pictures.dynamics({f"epoch {i}": CURVE for i in range(1, 9)}, "")
    brightness = [sum(line.get_color()[:3]) for line in lines(figure.axes[1]).values()]
    assert brightness == sorted(brightness, reverse=True) and len(set(brightness)) == 8


def test_the_unpruned_score_is_given_or_found():
    rest = CURVE[:1]
    kept, _ = pictures.dynamics({"x": rest}, "", unpruned={"x": 40.0}).axes
    assert list(kept.get_lines()[0].get_ydata()) == [50]
    with pytest.raises(ValueError, match="x: its score without pruning is needed"):
        pictures.dynamics({"x": rest}, "")


def test_of_a_score_of_zero_no_share_is_kept():
    kept, absolute = pictures.dynamics({"x": CURVE, "y": [(0, 0.0), (1, 0.0)]}, "").axes
    assert list(lines(absolute)) == ["x", "y"]
    assert [len(line.get_xdata()) for line in kept.get_lines()] == [3, 2]  # x and the line at 100


# --- correlation ----------------------------------------------------------------------------------

PAIRS = {
    Head("E", 1, 1): (-2.0, -1.0),
    Head("E", 1, 2): (0.1, 0.2),
    Head("A", 1, 1): (0.0, 0.0),
    Head("A", 1, 2): (1.0, 0.5),
    Head("D", 1, 1): (math.nan, 1.0),
}


def test_every_head_with_both_differences_is_a_point():
    figure = pictures.correlation(PAIRS, -0.5, 0.0432, ("valid", "test"), "a title")
    [panel] = figure.axes
    assert legend(figure) == ["E: encoder self-attention", "A: encoder-decoder attention"]
    assert [points.get_offsets().tolist() for points in panel.collections] == [
        [[-2, -1], [0.1, 0.2]],
        [[0, 0], [1, 0.5]],
    ]
    assert panel.get_xlabel() == "difference in BLEU on valid (points)"
    assert panel.get_ylabel() == "difference in BLEU on test (points)"
    figures = panel.texts[0].get_text().split("\n")
    assert figures == ["r = \N{MINUS SIGN}0.50", "p = 0.043", "4 heads"]
    one, other = (set(points.get_facecolor()[0]) for points in panel.collections)
    assert one != other


def test_a_tiny_p_is_a_bound():
    [panel] = pictures.correlation(PAIRS, 0.9, 1e-9, ("a", "b"), "").axes
    assert "p < 0.001" in panel.texts[0].get_text()


def names(panel):
    return [text.get_text() for text in panel.texts[1:]]


def test_the_farthest_heads_are_named():
    [panel] = pictures.correlation(PAIRS, 0.9, 0.01, ("a", "b"), "", labelled=2).axes
    assert names(panel) == ["E:1:1", "A:1:2"]


def test_names_cover_neither_points_nor_each_other_nor_the_frame():
    pairs = {Head("E", 1 + i // 9, 1 + i % 9): (math.sin(i), math.cos(i * i)) for i in range(90)}
    figure = pictures.correlation(pairs, 0.1, 0.5, ("a", "b"), "", labelled=90)
    figure.draw_without_rendering()
    [panel] = figure.axes
    points = panel.transData.transform(list(pairs.values()))
    boxes = [text.get_window_extent() for text in panel.texts[1:]]
    assert len(boxes) > 10
    for i, box in enumerate(boxes):
        assert panel.bbox.containsx(box.x0) and panel.bbox.containsx(box.x1)
        assert not any(box.contains(*point) for point in points)
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_heads_in_one_place_are_not_named():
    pairs = PAIRS | {Head("E", 2, 1): (-2.0, -1.0)}
    [panel] = pictures.correlation(pairs, 0.9, 0.01, ("a", "b"), "", labelled=3).axes
    assert names(panel) == ["A:1:2"]


def test_r_and_p_stand_in_an_empty_corner():
    corner = {Head("E", 1, i): (-1 + i / 100, 1 - i / 100) for i in range(1, 9)}
    [panel] = pictures.correlation(PAIRS | corner, -0.9, 0.01, ("a", "b"), "").axes
    assert panel.texts[0].get_position() == pytest.approx((0.97, 0.03))


@pytest.mark.parametrize("pairs", [{}, {Head("D", 1, 1): (math.nan, 1.0)}])
def test_a_correlation_needs_a_head_on_both_sets(pairs):
    with pytest.raises(ValueError, match="no head has a difference on both sets"):
        pictures.correlation(pairs, 0, 1, ("a", "b"), "")


# --- files ----------------------------------------------------------------------------------------

DRAWINGS = {
    "heat maps": lambda: pictures.heat_maps(SCORES, "a title", removed=[Head("A", 1, 1)]),
    "curves": lambda: pictures.curves({"x": CURVE}, "", 30.0, {"x": [(0, 1.0, 2.0)]}),
    "dynamics": lambda: pictures.dynamics({"x": CURVE}, ""),
    "correlation": lambda: pictures.correlation(PAIRS, 0.5, 0.5, ("a", "b"), ""),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_pictures_drawn_again_have_the_same_bytes(draw, tmp_path):
    first = [path.read_bytes() for path in pictures.save(draw(), tmp_path / "picture-0.5")]
    again = draw()
    pictures.save(again, tmp_path / "again")
    second = pictures.save(again, tmp_path / "picture-0.5", force=True)  # once more the same figure
    assert [path.name for path in second] == ["picture-0.5.png", "picture-0.5.svg"]
    assert [path.read_bytes() for path in second] == first
    assert first[0].startswith(b"\x89PNG") and b"<svg" in first[1]
    assert b"<dc:date>" not in first[1]


def test_no_picture_is_replaced_unasked(tmp_path):
    figure = pictures.curves({"x": CURVE}, "")
    (tmp_path / "curve.svg").write_text("mine")
    with pytest.raises(FileExistsError, match="--force"):
        pictures.save(figure, tmp_path / "curve")
    assert not (tmp_path / "curve.png").exists()
    pictures.save(figure, tmp_path / "curve", force=True)
    assert (tmp_path / "curve.svg").read_text() != "mine"


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_without_matplotlib_the_extra_is_named(draw, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"lite-transformer-plugin\[plots\]"):
        draw()
