"""Sheets of attention maps: every map is drawn as it is, with its words while there are few."""

import numpy as np
import pytest
import torch

from lite_transformer_plugin.heads.map_sheets import FEW, Panel, map_sheet

WORDS = ["the", "cat", "$5", "internationalisation", "</s>"]


def panel(title: str, seed: int = 0) -> Panel:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(4, 5, generator=generator).softmax(dim=1)
    return Panel(title, weights, WORDS[:4], WORDS)


def drawn(figure) -> dict:
    """The axes with a map, by title."""
    figure.draw_without_rendering()
    subfigures = figure.subfigs
    return {a.get_title(): a for s in subfigures for a in s.axes if a.get_visible() and a.images}


def test_few_maps_have_their_words():
    figure = map_sheet({"a": [[panel("E:1:1")], [panel("E:2:1", 1)]]}, "title")
    axes = drawn(figure)
    assert list(axes) == ["E:1:1", "E:2:1"]
    for seed, one in enumerate(axes.values()):
        shown = np.asarray(one.images[0].get_array())
        np.testing.assert_allclose(shown, panel("", seed).weights)
        keys = [label.get_text() for label in one.get_xticklabels()]
        assert keys == ["the", "cat", r"\$5", "internationalisation"[:13] + "…", "</s>"]
        assert [label.get_text() for label in one.get_yticklabels()] == keys[:4]


def test_many_maps_are_small_and_share_a_scale():
    rows = [[panel(f"E:{i}:{j}", i) for j in range(1, 4)] for i in range(1, 4)]
    axes = drawn(map_sheet({"a": rows}, "title"))
    assert len(axes) == 9 > FEW
    assert {len(one.get_xticks()) for one in axes.values()} == {0}
    assert {one.images[0].norm.vmax for one in axes.values()} == {1}


def test_two_models_stand_side_by_side():
    few, more = [[panel("E:1:1")]], [[panel("E:1:1"), panel("E:1:2")], [panel("E:2:1")]]
    figure = map_sheet({"left": few, "right": more}, "title")
    left, right, _ = figure.subfigs
    assert [left.get_suptitle(), right.get_suptitle()] == ["left", "right"]
    counts = [sum(a.get_visible() for a in part.axes) for part in (left, right)]
    assert counts == [1, 3]
    assert left.bbox.x1 <= right.bbox.x0 + 1e-6


def test_no_map_is_refused():
    with pytest.raises(ValueError, match="no attention map"):
        map_sheet({"a": []}, "title")
