"""The picture of roles shows every head's importance and every role."""

import pytest

from lite_transformer_plugin.heads.names import Head, parse_heads
from lite_transformer_plugin.heads.pictures import save
from lite_transformer_plugin.heads.role_pictures import NO_ROLE, STYLES, roles_over_importance
from lite_transformer_plugin.heads.roles import KINDS

pytest.importorskip("matplotlib")

HEADS = parse_heads("E:1:1-4 D:1:1-2")
IMPORTANCE = dict(zip(HEADS, [0.1, 0.4, 0.3, 0.2, 0.5, 0.6], strict=True))
ROLES = {HEADS[1]: ["positional -1"], HEADS[0]: ["syntactic", "rare words"], HEADS[5]: []}


def bars(panel) -> list[float]:
    return [bar.get_height() for bar in panel.patches]


def test_a_panel_for_each_part_with_the_most_important_first():
    figure = roles_over_importance(IMPORTANCE, ROLES, "a title")
    encoder, decoder = figure.axes
    assert figure.get_suptitle() == "a title"
    assert encoder.get_title("left") == "E: encoder self-attention"
    assert decoder.get_title("left") == "D: decoder self-attention"
    assert bars(encoder) == [0.4, 0.3, 0.2, 0.1] and bars(decoder) == [0.6, 0.5]
    names = [label.get_text() for label in encoder.get_xticklabels()]
    assert names == ["1:2", "1:3", "1:4", "1:1"]
    assert encoder.get_ylim() == decoder.get_ylim() and encoder.get_xlim() == decoder.get_xlim()


def marks(panel):
    """Place and shape of every marker, and where it is on the canvas."""
    for line in panel.lines:
        data = line.get_xydata()
        drawn = line.get_transform().transform(data)
        for (x, y), place in zip(data.tolist(), drawn.tolist(), strict=True):
            yield (x, y, line.get_marker()), place


def test_every_role_has_its_marker_above_its_head():
    figure = roles_over_importance(IMPORTANCE, ROLES, "")
    encoder, decoder = figure.axes
    figure.draw_without_rendering()
    found = dict(marks(encoder))
    assert sorted(found) == [(0, 0.4, "<"), (3, 0.1, "*"), (3, 0.1, "o")]
    assert not decoder.lines
    assert found[3, 0.1, "*"][1] + 10 < found[3, 0.1, "o"][1]  # one above the other
    for (bar, *_), (x, y) in found.items():
        box = encoder.patches[int(bar)].get_window_extent()
        assert box.x0 < x < box.x1 and box.y1 + 5 < y


def test_heads_without_a_role_are_pale():
    from matplotlib.colors import same_color

    figure = roles_over_importance(IMPORTANCE, ROLES, "")
    pale = [[same_color(bar.get_facecolor(), NO_ROLE) for bar in p.patches] for p in figure.axes]
    assert pale == [[False, True, True, False], [True, True]]


def test_means_tell_whether_heads_with_roles_matter_more():
    encoder, decoder = roles_over_importance(IMPORTANCE, ROLES, "").axes
    assert encoder.get_title("right") == "2 with a role, mean 0.25; 2 without, mean 0.25"
    assert decoder.get_title("right") == "0 with a role; 2 without, mean 0.55"


def test_the_legend_counts_roles():
    figure = roles_over_importance(IMPORTANCE, ROLES, "")
    [legend] = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["positional \N{MINUS SIGN}1 (1)", "rare words (1)", "syntactic (1)", "no role"]
    assert list(STYLES) == list(KINDS)
    assert len({marker for marker, _ in STYLES.values()}) == len(KINDS)


def test_small_scores_have_a_power_of_ten():
    small = {head: score * 1e-6 for head, score in IMPORTANCE.items()}
    encoder, _ = roles_over_importance(small, {}, "").axes
    assert encoder.get_ylabel() == r"importance ($\times\,10^{-7}$)"
    assert bars(encoder) == pytest.approx([4, 3, 2, 1])


@pytest.mark.parametrize("layers, heads", [(1, 1), (3, 4), (6, 16), (24, 16)])
def test_everything_stays_inside_of_the_picture(layers, heads):
    names = [
        Head(p, n, h) for p in "EAD" for n in range(1, layers + 1) for h in range(1, heads + 1)
    ]
    importance = {head: 1 / (head.layer + head.head) for head in names}
    figure = roles_over_importance(importance, dict.fromkeys(names, KINDS), "a title")
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [artist.get_window_extent() for artist in (*figure.legends, *figure.texts)]
    for box in boxes:
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
    for panel in figure.axes:
        assert len(bars(panel)) == layers * heads
        labels = [label.get_window_extent() for label in panel.get_xticklabels()]
        assert all(a.x1 <= b.x0 + 1 for a, b in zip(labels, labels[1:], strict=False))
        places = [place for _, place in marks(panel)]
        assert len(places) == layers * heads * len(KINDS)
        assert max(y for _, y in places) < panel.title.get_window_extent().y0


def test_the_same_picture_has_the_same_bytes(tmp_path):
    pair = [
        save(roles_over_importance(IMPORTANCE, ROLES, ""), tmp_path / name) for name in ("a", "b")
    ]
    for one, other in zip(*pair, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="no head whose role"):
        roles_over_importance({}, {}, "")
