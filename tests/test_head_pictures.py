"""Pictures of pruning show all the data they are given, and come out the same each time."""

import math
import sys

import pytest
from test_head_heat_maps import SCORES, legend
from test_head_scatter import PAIRS

from lite_transformer_plugin.heads import pictures
from lite_transformer_plugin.heads.heat_maps import heat_maps
from lite_transformer_plugin.heads.names import Head
from lite_transformer_plugin.heads.scatter import correlation

pytest.importorskip("matplotlib")

CURVE = [(0.5, 20.0), (0.0, 30.0), (1.0, 0.0)]


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


# --- files ----------------------------------------------------------------------------------------

DRAWINGS = {
    "heat maps": lambda: heat_maps(SCORES, "a title", removed=[Head("A", 1, 1)]),
    "curves": lambda: pictures.curves({"x": CURVE}, "", 30.0, {"x": [(0, 1.0, 2.0)]}),
    "dynamics": lambda: pictures.dynamics({"x": CURVE}, ""),
    "correlation": lambda: correlation(PAIRS, 0.5, 0.5, ("a", "b"), ""),
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
