"""Two data sets compared: a point for each head, and names that cover nothing."""

import math

import pytest
from test_head_heat_maps import legend

from lite_transformer_plugin.heads.names import Head
from lite_transformer_plugin.heads.scatter import correlation

pytest.importorskip("matplotlib")

PAIRS = {
    Head("E", 1, 1): (-2.0, -1.0),
    Head("E", 1, 2): (0.1, 0.2),
    Head("A", 1, 1): (0.0, 0.0),
    Head("A", 1, 2): (1.0, 0.5),
    Head("D", 1, 1): (math.nan, 1.0),
}


def test_every_head_with_both_differences_is_a_point():
    figure = correlation(PAIRS, -0.5, 0.0432, ("valid", "test"), "a title")
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
    [panel] = correlation(PAIRS, 0.9, 1e-9, ("a", "b"), "").axes
    assert "p < 0.001" in panel.texts[0].get_text()


def names(panel):
    return [text.get_text() for text in panel.texts[1:]]


def test_the_farthest_heads_are_named():
    [panel] = correlation(PAIRS, 0.9, 0.01, ("a", "b"), "", labelled=2).axes
    assert names(panel) == ["E:1:1", "A:1:2"]


def test_names_cover_neither_points_nor_each_other_nor_the_frame():
    pairs = {Head("E", 1 + i // 9, 1 + i % 9): (math.sin(i), math.cos(i * i)) for i in range(90)}
    figure = correlation(pairs, 0.1, 0.5, ("a", "b"), "", labelled=90)
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
    [panel] = correlation(pairs, 0.9, 0.01, ("a", "b"), "", labelled=3).axes
    assert names(panel) == ["A:1:2"]


def test_r_and_p_stand_in_an_empty_corner():
    corner = {Head("E", 1, i): (-1 + i / 100, 1 - i / 100) for i in range(1, 9)}
    [panel] = correlation(PAIRS | corner, -0.9, 0.01, ("a", "b"), "").axes
    assert panel.texts[0].get_position() == pytest.approx((0.97, 0.03))


@pytest.mark.parametrize("pairs", [{}, {Head("D", 1, 1): (math.nan, 1.0)}])
def test_a_correlation_needs_a_head_on_both_sets(pairs):
    with pytest.raises(ValueError, match="no head has a difference on both sets"):
        correlation(pairs, 0, 1, ("a", "b"), "")
