"""Published figures, and the pictures that lay measured ones beside them."""

import json

import pytest

from lite_transformer_plugin import report, tradeoff
from lite_transformer_plugin.cost import PHONE_MULT_ADDS

PUBLISHED = tradeoff.published()
POINT = {"benchmark": "iwslt14_de_en", "model": "mine", "mult_adds": 54144000, "score": 29.5}


def test_every_figure_has_source_and_grade():
    for group in ("sizes", "quality", "search_cost", "other_results", "compression", "heads"):
        assert PUBLISHED[group]
        for row in PUBLISHED[group]:
            assert row["source"] and row["grade"] in PUBLISHED["grades"], row


def score(benchmark, model, mult_adds):
    [found] = [
        row["score"]
        for row in PUBLISHED["quality"]
        if (row["benchmark"], row["model"], row["mult_adds"]) == (benchmark, model, mult_adds)
    ]
    return found


def test_margins_of_the_paper():
    """Its headlines: +3.1 BLEU at the smallest size, +1.7 and +1.2 BLEU on En-Fr, +0.5 to ET."""
    assert score("iwslt14_de_en", "lite_transformer", "54M") == 30.9
    gains = {"63M": ("54M", 3.1), "139M": ("119M", 1.6), "215M": ("209M", 0.9)}
    for transformer, (lite, gain) in gains.items():
        better = score("iwslt14_de_en", "lite_transformer", lite)
        assert better - score("iwslt14_de_en", "transformer", transformer) == pytest.approx(gain)
    for transformer, lite, gain in (("87M", "90M", 1.7), ("527M", "527M", 1.2)):
        better = score("wmt14_en_fr", "lite_transformer", lite)
        assert better - score("wmt14_en_fr", "transformer", transformer) == pytest.approx(gain)
    evolved = score("wmt16_en_de", "evolved_transformer", "94M")
    assert score("wmt16_en_de", "lite_transformer", "90M") - evolved == pytest.approx(0.5)


def test_every_point_can_be_drawn():
    for row in PUBLISHED["quality"]:
        assert row["benchmark"] in tradeoff.benchmarks() and row["model"] in tradeoff.STYLES
        assert report.parse_count(row["mult_adds"]) > 1e6


def test_the_search_took_gpu_years():
    header, *lines = tradeoff.search_cost_table()
    assert [line for line in lines if line[0] == "Evolved Transformer"] == [
        ["Evolved Transformer", "94M", "22.0", "2,200,000", "630,000", "5,500,000"]
    ]
    assert header[3] == "GPU hours"


def write(path, data):
    path.write_text(json.dumps(data))
    return path


def test_results_of_several_files_are_read(tmp_path):
    first = write(tmp_path / "a.json", {"results": [POINT]})
    second = write(tmp_path / "b.json", {"results": [POINT | {"score": 31, "test_set": "x"}]})
    assert [row["score"] for row in tradeoff.read_results([first, second])] == [29.5, 31]


@pytest.mark.parametrize(
    "data, names",
    [
        ([POINT], "results"),
        ({"results": []}, "results"),
        ({"results": [{**POINT, "score": None}]}, "score is None"),
        ({"results": [{**POINT, "mult_adds": "54M"}]}, "mult_adds is '54M'"),
        ({"results": [{**POINT, "mult_adds": -1}]}, "at least 1"),
        ({"results": [{**POINT, "benchmark": "iwslt"}]}, "not one of .*iwslt14_de_en"),
        ({"results": ["text"]}, "benchmark"),
    ],
)
def test_other_files_are_refused(data, names, tmp_path):
    with pytest.raises(ValueError, match=names):
        tradeoff.read_results([write(tmp_path / "r.json", data)])


def test_files_that_are_not_json_or_not_there_are_refused(tmp_path):
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        tradeoff.read_results([tmp_path / "r.json"])
    with pytest.raises(FileNotFoundError, match="none.json"):
        tradeoff.read_results([tmp_path / "none.json"])


def test_pictures_show_published_and_measured_points(tmp_path):
    pytest.importorskip("matplotlib")
    measured = [POINT, POINT | {"mult_adds": 119000000, "score": 31.5, "test_set": "lohelp-de"}]
    [panel] = tradeoff._single("iwslt14_de_en", measured).axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert list(lines["Lite Transformer, published"].get_xdata()) == [54, 119, 209]
    assert list(lines["Lite Transformer, published"].get_ydata()) == [30.9, 32.9, 33.6]
    assert list(lines["mine, measured here"].get_ydata()) == [29.5]
    assert list(lines["mine, measured here on lohelp-de"].get_ydata()) == [31.5]
    published, mine = lines["Lite Transformer, published"], lines["mine, measured here"]
    assert published.get_marker() != mine.get_marker()
    assert panel.get_xscale() == "log"
    assert any(list(line.get_xdata()) == [PHONE_MULT_ADDS / 1e6] * 2 for line in panel.get_lines())


def test_one_picture_for_every_benchmark_and_one_for_all(tmp_path):
    pytest.importorskip("matplotlib")
    paths = tradeoff.draw(tmp_path / "out.png")
    names = {path.name for path in paths}
    assert names == {"out.png", *(f"out-{name}.png" for name in tradeoff.benchmarks())}
    assert len(tradeoff.benchmarks()) == 4
    assert all(path.stat().st_size > 10_000 for path in paths)
    picture, table = tradeoff._single("wmt16_en_de", []).axes
    assert "Evolved Transformer, published" in [li.get_label() for li in picture.get_lines()]
    assert "2,200,000" in [
        cell.get_text().get_text() for cell in table.tables[0].get_celld().values()
    ]
