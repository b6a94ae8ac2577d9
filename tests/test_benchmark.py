"""The benchmark at sizes of a toy: what is measured, and what is written about it."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "examples" / "benchmark" / "benchmark.py"
KINDS = {"ours": "lite_transformer", "stock": "transformer"}


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark", module)
    monkeypatch.syspath_prepend(PATH.parent)  # its child process imports it from there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SIZES", {"w496": ("lite_transformer_wmt_en_de_200", 40, 200, 8)})
    for name, value in dict(
        BATCHES=(1,), SENTENCES=2, KERNELS=(3,), LENGTHS=(28,), PRUNED="transformer_quickstart"
    ).items():
        monkeypatch.setattr(module, name, value)
    small = {who: (f"{kind}_quickstart", []) for who, kind in KINDS.items()}
    for name, value in dict(SOURCES=(8,), SUMMARY=3, WORDS=40, ARCHITECTURES=small).items():
        monkeypatch.setattr(sys.modules["summaries"], name, value)
    return module


def test_models_differ_in_attention_only(benchmark):
    pair = benchmark.models(benchmark.SIZES["w496"])
    assert [type(m.encoder.layers[0].fc1).__name__ for m in pair.values()] == ["Linear"] * 2
    sizes = {m.encoder.layers[0].fc1.weight.shape for m in pair.values()}
    assert sizes == {(200, 200)}
    heads = {m.decoder.layers[0].encoder_attn.num_heads for m in pair.values()}
    assert heads == {8}


@pytest.mark.parametrize("part", ["train", "decode", "convolution", "length", "heads", "summaries"])
def test_every_part_gives_rows(benchmark, monkeypatch, tmp_path, part):
    if part == "summaries":  # a process of its own would not know that all is small here
        peak = lambda make, *words: bool(make(*words)()) + 1.0  # noqa: E731
        monkeypatch.setattr(sys.modules["summaries"], "peak_memory", peak)
    path = tmp_path / "rows.json"
    words = ["benchmark.py", part, "--turns", "1", "--json", str(path)]
    monkeypatch.setattr(benchmark.sys, "argv", words)
    benchmark.main()
    data = json.loads(path.read_text())
    assert data["rows"] and data["provenance"]["command"] == words
    for row in data["rows"]:
        if row["unit"] == "ms":
            assert row["ours"] > 0 and row["stock"] > 0
            assert row["ratio"] == pytest.approx(row["stock"] / row["ours"], rel=0.01, abs=0.01)


def test_a_process_that_dies_is_not_waited_for(benchmark):
    with pytest.raises((RuntimeError, ValueError), match="."):
        benchmark.peak_memory(benchmark.alone, ("no_such", 40, 200, 8), "ours", 1, 28)


def test_unknown_part_is_refused(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.sys, "argv", ["benchmark.py", "speed"])
    with pytest.raises(SystemExit) as stopped:
        benchmark.main()
    assert stopped.value.code == 2
    assert "unknown part speed" in capsys.readouterr().err
