"""`fairseq-prune-heads`, in this process, on a model of three updates."""

import json
import shutil
from typing import NamedTuple

import pytest
import torch
from stock import LAST, generate, make_run, train

from lite_transformer_plugin.cli import prune_heads_study
from lite_transformer_plugin.cli.prune_heads import main

SEARCH = ["--beam", "2", "--max-len-b", "10", "--cpu", "--batch-size", "4"]
RATIOS = ["--ratios", "0,0.5,1"]


class Found(NamedTuple):
    """A correlation."""

    r: float
    p: float


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with data and saved/checkpoint_last.pt."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return folder


def prune(run, results, *words) -> int:
    model = [] if {"--checkpoints", "--path"} & {*words} else ["--path", str(run / "saved" / LAST)]
    where = ["--results-dir", str(results)]
    return main([str(run / "data"), *model, *where, *SEARCH, *map(str, words)])


def rows(path, name):
    return json.loads((path / f"{name}.json").read_text())[name]


def figures(folder) -> dict[str, bytes]:
    """What a repeated run writes to the same bytes."""
    kinds = (".csv", ".json", ".png", ".svg")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in kinds}


def test_importance_and_curve(run, tmp_path):
    assert prune(run, tmp_path / "results", *RATIOS) == 0
    importance, curve = (rows(tmp_path / "results", n) for n in ("importance", "curve"))
    assert importance[0]["head"] == "E:1:1"
    assert [row["share"] for row in curve] == [0, 0.5, 1]
    assert [row["heads_removed"] for row in curve] == [0, len(importance) / 2, len(importance)]
    data = json.loads((tmp_path / "results" / "curve.json").read_text())
    assert data["signature"].startswith("nrefs:1")
    assert "--results-dir" not in data["provenance"]["command"]


def test_a_repeated_run_writes_the_same_bytes(run, tmp_path):
    for name in ("one", "other"):
        assert prune(run, tmp_path / name, *RATIOS) == 0
    assert figures(tmp_path / "one") == figures(tmp_path / "other")


def test_two_processes_find_the_same(run, tmp_path):
    words = [*RATIOS, "--ablate", "one", "--parts", "D"]
    for number in (1, 2):
        assert prune(run, tmp_path / str(number), *words, "--processes", number) == 0
    one, two = (tmp_path / "1", tmp_path / "2")
    assert rows(one, "curve") == rows(two, "curve")
    assert rows(one, "ablation") == rows(two, "ablation")
    for a, b in zip(rows(one, "importance"), rows(two, "importance"), strict=True):
        assert a["head"] == b["head"]
        assert a["importance"] == pytest.approx(b["importance"], rel=1e-6)


def test_goes_on_after_it_was_killed(run, tmp_path, monkeypatch):
    words = [*RATIOS, "--ablate", "one", "--parts", "D"]
    assert prune(run, tmp_path / "whole", *words) == 0
    stock, left = prune_heads_study.ResultsFolder.remember, iter([True] * 7)

    def killed(self, *finding):
        if not next(left, False):
            raise KeyboardInterrupt
        stock(self, *finding)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prune_heads_study.ResultsFolder, "remember", killed)
        prune(run, tmp_path / "parts", *words)
    with open(tmp_path / "parts" / "progress-0.jsonl", "a") as file:
        file.write('["one ", "E:')  # stopped in the middle of a line
    assert not (tmp_path / "parts" / "curve.csv").exists()
    assert prune(run, tmp_path / "parts", *words) == 0
    assert figures(tmp_path / "whole") == figures(tmp_path / "parts")


def test_other_settings_need_force(run, tmp_path, capsys):
    assert prune(run, tmp_path / "results", "--only-importance") == 0
    before = figures(tmp_path / "results")
    other = ["--only-importance", "--importance-unit", "token"]
    assert prune(run, tmp_path / "results", *other) == 2
    assert "importance_unit: 'sentence', now 'token'" in capsys.readouterr().err
    assert figures(tmp_path / "results") == before
    assert prune(run, tmp_path / "results", *other, "--force") == 0
    assert json.loads((tmp_path / "results" / "importance.json").read_text())["unit"] == "token"


def test_saved_checkpoint_translates_and_trains_on(run, tmp_path, capsys):
    assert prune(run, tmp_path / "results", *RATIOS, "--save-ratio", "0.4") == 0
    out, path = capsys.readouterr().out, tmp_path / "results" / "pruned-40.pt"
    [saved] = [line for line in out.splitlines() if line.startswith(str(path))]
    assert "heads" in saved and "->" in saved and "Mult-Adds" in saved
    assert "--arch pruned --pruned-from" in out
    gone = [row for row in rows(tmp_path / "results", "curve") if row["share"] == 0.4]
    state = torch.load(path)
    assert state["cfg"]["model"]["pruned_heads"] == gone[0]["pruned_heads"]
    generate(run / "data", path)
    assert "BLEU4" in capsys.readouterr().out


def test_a_foreign_checkpoint_is_not_replaced(run, tmp_path, capsys):
    results = tmp_path / "results"
    results.mkdir()
    (results / "pruned-50.pt").write_text("mine")
    words = [*RATIOS, "--save-ratio", "0.5"]
    assert prune(run, results, *words) == 2
    assert "pruned-50.pt exists" in capsys.readouterr().err
    assert (results / "pruned-50.pt").read_text() == "mine"


def test_all_but_one_on_two_sets(run, tmp_path, monkeypatch):
    """The same set twice. A model this young may lose nothing, and then r is undefined."""
    shutil.copytree(run / "data", tmp_path / "data2")
    words = ["--ablate", "all-but-one", "--compare-data", tmp_path / "data2", "--parts", "A"]
    monkeypatch.setattr(prune_heads_study.ablation, "correlate", lambda one, other: Found(0.5, 0.1))
    assert prune(run, tmp_path / "results", *words, "--ratios", "0") == 0
    here, there = (rows(tmp_path / "results", f"ablation{where}") for where in ("", "-elsewhere"))
    assert here == there and {row["head"][0] for row in here} == {"A"}
    data = json.loads((tmp_path / "results" / "comparison.json").read_text())
    assert data["r"] == 0.5 and len(data["comparison"]) == 2  # the best head of each layer


def test_dynamics_has_a_curve_for_each_checkpoint(run, tmp_path):
    train(run / "data", tmp_path / "saved", "--max-update", 2, "--disable-validation")
    paths = [tmp_path / "saved" / LAST, run / "saved" / LAST]
    assert prune(run, tmp_path / "results", "--ratios", "0,1", "--checkpoints", *paths) == 0
    found = rows(tmp_path / "results", "dynamics")
    assert [row["share"] for row in found] == [0, 1, 0, 1]
    assert (tmp_path / "results" / "dynamics.svg").exists()


@pytest.mark.parametrize("order", ["ablation", "norm", "random"])
def test_other_orders(run, tmp_path, order):
    words = ["--order", order, "--parts", "D", "--ratios", "0.5"]
    assert prune(run, tmp_path / "results", *words, "--min-heads-per-layer", "1") == 0
    [row] = rows(tmp_path / "results", "curve")
    assert set(row["pruned_heads"].replace("D", "")) <= set("0123456789:-, ")


def test_reestimated_importance(run, tmp_path):
    words = ["--reestimate", *RATIOS, "--importance-steps", "2"]
    assert prune(run, tmp_path / "results", *words) == 0
    progress = (tmp_path / "results" / "progress-0.jsonl").read_text().splitlines()
    assert sum(json.loads(line)[0].startswith("importance") for line in progress) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (["--ratios", "0,1.5"], "lies between 0 and 1, not at 1.5"),
        (["--ratios", "half"], "write shares as 0,0.25,0.5"),
        (["--parts", "E,X"], "no part 'X'"),
        (["--gen-subset", "nowhere"], "--gen-subset nowhere: there is no such split"),
        (["--importance-subset", "nowhere"], "--importance-subset nowhere: there is no such split"),
        (["--reestimate", "--order", "norm"], "does not go with --order norm"),
        (["--compare-data", "x"], "give --ablate"),
        (["--only-importance", "--save-ratio", "0.4"], "--only-importance stops before"),
        (["--save-ratio", "0"], "nothing to save"),
        (["--min-heads-per-layer", "9", "--ratios", "0.5"], "the largest share is 0"),
        (["--path", "none.pt"], "there is no checkpoint none.pt"),
        (["--order", "luck"], "invalid choice: 'luck'"),
        (["--importance-steps", "0"], "must be at least 1"),
        (["--processes", "0"], "--processes (0) must be at least 1"),
        (["--subset-size", "0"], "a subset of 0 sentences is empty"),
    ],
)
def test_bad_input_gets_one_line(run, tmp_path, capsys, words, message):
    assert prune(run, tmp_path / "results", *words) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "fairseq-prune-heads:" in line]
    assert len(err) == 1 and message in err[0]
