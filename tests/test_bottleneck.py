"""Shares of the parts over length, against the paper's formula."""

import pytest

from lite_transformer_plugin import build
from lite_transformer_plugin.cost import bottleneck


def test_lengths_between_the_ends_are_1_2_5():
    assert bottleneck.length_range("10:1000") == [10, 20, 50, 100, 200, 500, 1000]
    assert bottleneck.length_range("7:30") == [7, 10, 20, 30]
    assert bottleneck.length_range("3:3") == [3]


@pytest.mark.parametrize("text", ["0:10", "10", "20:10", "a:b", "-1:5", "1:", "1:2:3"])
def test_impossible_lengths_are_refused(text):
    with pytest.raises(ValueError, match="10:1000"):
        bottleneck.length_range(text)


def rows_by_model(dim, lengths, taps=True):
    rows = bottleneck.layer_shares(dim, lengths, "paper", taps)
    return {(row["model"], row["length"]): row for row in rows}


def test_shares_follow_the_formula():
    d = 64
    rows = rows_by_model(d, [1, 10, 2 * d, 1000])
    for (model, n), row in rows.items():
        assert sum(row[part] for part in bottleneck.SHOWN) == pytest.approx(1)
        ratio = {"attention, 4d FFN": 4, "attention, flat FFN": 1}.get(model)
        if ratio is not None:
            attention, ffn = 4 * n * d * d + 2 * n * n * d, 2 * ratio * n * d * d
            assert row["mult_adds"] == attention + ffn
            assert row["attention"] == pytest.approx(attention / (attention + ffn))
    # at N = 2d the scores cost as much as the projections, and both as much as a 4d FFN
    assert rows["attention, 4d FFN", 2 * d]["attention"] == pytest.approx(0.5)


def test_the_paper_s_text_is_beside():
    rows = rows_by_model(64, [100])
    n, d = 100, 64
    attention = 4 * n * d * d + n * n * d
    written = rows["attention, 4d FFN", n]["attention_as_written"]
    assert written == pytest.approx(attention / (attention + 8 * n * d * d))
    written = rows["attention, flat FFN", n]["attention_as_written"]
    assert written == pytest.approx(attention / (attention + 2 * n * d * d))
    assert rows["LSRA, flat FFN", n]["attention_as_written"] is None


def test_attention_grows_and_lsra_halves_it():
    rows = rows_by_model(512, [10, 1000])
    for model in bottleneck.LAYERS:
        assert rows[model, 1000]["attention"] > rows[model, 10]["attention"]
        assert rows[model, 1000]["FFN"] < rows[model, 10]["FFN"]
    whole, half = rows["attention, flat FFN", 10], rows["LSRA, flat FFN", 10]
    assert half["attention"] * half["mult_adds"] < 0.5 * whole["attention"] * whole["mult_adds"]
    assert half["convolution"] > 0


def test_models_have_their_own_shares_and_panels():
    pytest.importorskip("matplotlib")
    models = {
        name: build.architecture(name, 20, weights=False)
        for name in ("transformer_wmt_128", "lite_transformer_wmt_en_de_200")
    }
    rows = bottleneck.shares(models, [10, 100], "paper", True)
    header, *lines = bottleneck.table(rows)
    assert header == [
        "model", "length", "Mult-Adds", "attention", "convolution", "cross-attention", "FFN"
    ]  # fmt: skip
    assert lines[0][:2] == ["transformer_wmt_128", "10"]
    assert lines[0][4] == "-"  # no convolution
    figure = bottleneck.draw(rows)
    assert [panel.get_title() for panel in figure.axes] == list(models)
    labels = [line.get_label() for line in figure.axes[1].get_lines()]
    assert labels == ["attention", "convolution", "cross-attention", "FFN"]
