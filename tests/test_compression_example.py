"""examples/compression: the curve, its picture, the table, and the chain's scripts."""

import csv
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from pruned_checkpoints import data_of, train_every
from translation_examples import script

from lite_transformer_plugin.cli import compress, compress_sizes

EXAMPLE = Path(__file__).parents[1] / "examples/compression"
HOW = "--cpu --beam 2 --max-len-b 10 --num-workers 0".split()


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"compression_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


curve, picture, table = (load(name) for name in ("curve", "picture", "table"))


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    monkeypatch.setattr(compress_sizes, "SMALLEST", 100)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Data, and a trained checkpoint."""
    session = tmp_path_factory.getbasetemp()
    return data_of(session), train_every(session)["lite_transformer"]


def measure(work, folder: Path, *words) -> int:
    data, path = work
    flags = ["--path", path, "--results-dir", folder, *words]
    return curve.main([str(word) for word in (data, *flags, *HOW)])


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_a_curve_is_what_the_command_measures(work, tmp_path, capsys):
    words = ["--shares", "0,0.5", "--widths", "4", "--name", "as trained"]
    assert measure(work, tmp_path / "curve", *words) == 0
    found = rows(tmp_path / "curve/curve.csv")
    assert [(row["zeros"], row["bits"]) for row in found] == [
        (zeros, bits) for zeros in ("0.0", "0.5") for bits in ("32", "4")
    ]
    data, path = work
    flags = ["--path", path, "--output", tmp_path / "f.pt", "--bits", 4, "--sparsity", 0.5]
    assert compress.main([str(word) for word in (data, *flags, *HOW)]) == 0
    steps = {row["step"]: row for row in rows(tmp_path / "f/compression.csv")}
    for row, step in zip(found[1:], ("", "with zeros", "4 bits"), strict=True):
        for name in ("bytes", "ratio", "authors_ratio", "loss", "bleu") if step else ():
            assert float(row[name]) == pytest.approx(float(steps[step][name])), (step, name)

    progress = (tmp_path / "curve/progress-0.jsonl").read_text()
    assert measure(work, tmp_path / "curve", *words) == 0  # nothing is measured again
    assert (tmp_path / "curve/progress-0.jsonl").read_text() == progress
    data = json.loads((tmp_path / "curve/curve.json").read_text())
    assert data["name"] == "as trained" and data["signature"] and data["provenance"]

    picture.run([str(tmp_path / "drawn"), str(tmp_path / "curve"), str(tmp_path / "curve")])
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
    lines = picture.draw([data], 0).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["0% zeros", "50% zeros"]
    assert list(lines[1].get_xdata()) == [float(row["ratio"]) for row in found[2:]]


def test_the_table_counts_whole_files(work, tmp_path, capsys):
    data, path = work
    flags = ["--path", path, "--output", tmp_path / "small.pt", "--bits", 3, "--no-bleu"]
    assert compress.main([str(word) for word in (data, *flags, *HOW)]) == 0
    words = [f"whole={path}", f"3 bits={tmp_path / 'small.pt'}", "--output", tmp_path / "chain"]
    assert table.main([str(word) for word in (data, *words, *HOW)]) == 0
    whole, small = rows(tmp_path / "chain.csv")
    assert int(small["bytes"]) == (tmp_path / "small.pt").stat().st_size
    assert float(small["ratio"]) == pytest.approx(int(whole["bytes"]) / int(small["bytes"]))
    assert float(small["authors_ratio"]) > 1 and small["loss"] != whole["loss"]
    assert whole["test"] and whole["valid"]


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--shares", "0,x"], "are numbers with commas"),
        (["--shares", "0.9"], "from 0 to 0.8 of the weights"),
        (["--widths", "9"], "--bits 9"),
        (["--widths"], "--widths needs a value"),
    ],
)
def test_wrong_points(words, expected, work, tmp_path, capsys):
    data, path = work
    argv = [str(data), "--path", str(path), "--results-dir", str(tmp_path / "c"), *words]
    assert curve.main(argv) == 2
    assert expected in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_wrong_files(work, tmp_path, capsys):
    data, path = map(str, work)
    assert table.main([data, "a=/no/such.pt", "--output", str(tmp_path / "t")]) == 2
    assert "there is no checkpoint /no/such.pt" in capsys.readouterr().err
    assert table.main([data, f"a={path}"]) == 2
    assert "--output STEM is missing" in capsys.readouterr().err
    with pytest.raises(ValueError, match="let curve.py write it first"):
        picture.run([str(tmp_path / "p"), str(tmp_path)])


def test_the_chain_refuses(work, tmp_path):
    data, path = work
    for settings, expected in (
        ({"DATA": "/no/such"}, "DATA (/no/such) must be a folder"),
        ({"DATA": data, "LITE": "/no/such.pt"}, "there is no checkpoint '/no/such.pt'"),
    ):
        refused = script("compression", "chain", WORK=tmp_path, **settings)
        assert refused.returncode == 2 and expected in refused.stderr


STAND_IN = """#!/usr/bin/env bash
[ "$1" != -c ] || exec {python} "$@"
echo "$(basename "$0") $*" >>{log}
while [ $# -gt 1 ]; do
  case $1 in
    --save-dir) mkdir -p "$2"; touch "$2/checkpoint_best.pt" ;;
    --results-dir) mkdir -p "$2"; touch "$2/pruned-30.pt" ;;
    --output) touch "$2" ;;
  esac
  shift
done
"""


@pytest.mark.parametrize("heads", ["0", "0.3"])
def test_the_chain_hands_every_flag_on(heads, work, tmp_path):
    data, path = work
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    for name in ("fairseq-train", "python3"):
        file = tmp_path / "bin" / name
        file.write_text(STAND_IN.format(python=sys.executable, log=log))
        file.chmod(0o755)
    settings = {"DATA": data, "LITE": path, "HEADS": heads, "WORK": tmp_path / "w"}
    for _ in range(2):  # the second time only the table is made
        done = script("compression", "chain", path=f"{tmp_path}/bin:", **settings)
        assert done.returncode == 0, done.stderr
    commands = log.read_text().splitlines()
    trainings = [line for line in commands if line.startswith("fairseq-train")]
    others = [line for line in commands if line not in trainings]
    removed = heads != "0"
    assert len(trainings) == 3 + removed and len(others) == 3 + removed + 2
    assert all("--max-tokens 1536 --dropout 0.1" in line for line in trainings)
    assert all("--remove-bpe sentencepiece" in line for line in others)
    whole = [line for line in trainings if f"--finetune-from-model {path}" in line]
    assert "--arch lite_transformer_quickstart --share-all-embeddings" in whole[0]
    assert f"--max-update {1800 if removed else 1200}" in whole[0]
    table = others[-1]
    assert ("30 % of heads removed=" in table) == removed and "control=" in table


def test_help(capsys):
    for module in (curve, table):
        assert module.main(["--help"]) == 0
        assert f"python {Path(module.__file__).name} DATA" in capsys.readouterr().out
