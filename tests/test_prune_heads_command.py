"""`fairseq-prune-heads`, in this process, on a model of three updates."""

import argparse
import json
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from stock import LAST, generate, make_run

from lite_transformer_plugin.cli import prune_heads, prune_heads_measures, prune_heads_study
from lite_transformer_plugin.cli.prune_heads import main
from lite_transformer_plugin.cli.prune_heads_arguments import SHARES, parse
from lite_transformer_plugin.heads import parse_heads

SEARCH = ["--beam", "2", "--max-len-b", "10", "--cpu", "--batch-size", "4"]
RATIOS = ["--ratios", "0,0.5,1"]
ABLATE = [*RATIOS, "--ablate", "one", "--parts", "D"]


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


@pytest.fixture(scope="module")
def plain(run):
    """Results of a run with no more than a curve."""
    assert prune(run, run / "plain", *RATIOS) == 0
    return run / "plain"


@pytest.fixture(scope="module")
def ablated(run):
    """Results of a run with an ablation."""
    assert prune(run, run / "ablated", *ABLATE) == 0
    return run / "ablated"


@pytest.fixture
def undrawn(monkeypatch):
    """Without pictures, which take most of the time."""
    monkeypatch.setattr(prune_heads_study.Output, "draw", lambda *args: None)


def words_of(run, results, *words) -> list[str]:
    model = [] if {"--checkpoints", "--path"} & {*words} else ["--path", str(run / "saved" / LAST)]
    where = ["--results-dir", str(results)]
    return [str(run / "data"), *model, *where, *SEARCH, *map(str, words)]


def prune(run, results, *words) -> int:
    return main(words_of(run, results, *words))


def rows(path, name):
    return json.loads((path / f"{name}.json").read_text())[name]


def figures(folder) -> dict[str, bytes]:
    """What a repeated run writes to the same bytes."""
    kinds = (".csv", ".json", ".png", ".svg")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in kinds}


def test_importance_and_curve(plain):
    importance, curve = (rows(plain, n) for n in ("importance", "curve"))
    assert importance[0]["head"] == "E:1:1"
    assert [row["share"] for row in curve] == [0, 0.5, 1]
    assert [row["heads_removed"] for row in curve] == [0, len(importance) / 2, len(importance)]
    data = json.loads((plain / "curve.json").read_text())
    assert data["signature"].startswith("nrefs:1")
    assert "--results-dir" not in data["provenance"]["command"]


def test_a_repeated_run_writes_the_same_bytes(run, plain, tmp_path):
    assert prune(run, tmp_path, *RATIOS) == 0
    found = figures(plain)
    assert len(found) == 9 and found == figures(tmp_path)  # settings.json among them


def test_two_processes_find_the_same(run, ablated, tmp_path):
    assert prune(run, tmp_path, *ABLATE, "--processes", 2) == 0
    for name in ("curve", "ablation"):
        assert rows(ablated, name) == rows(tmp_path, name)
    for a, b in zip(rows(ablated, "importance"), rows(tmp_path, "importance"), strict=True):
        assert a["head"] == b["head"]
        assert a["importance"] == pytest.approx(b["importance"], rel=1e-6)


def test_goes_on_after_it_was_killed(run, ablated, tmp_path, monkeypatch):
    stock, left = prune_heads_study.ResultsFolder.remember, iter([True] * 7)

    def killed(self, *finding):
        if not next(left, False):
            raise KeyboardInterrupt
        stock(self, *finding)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prune_heads_study.ResultsFolder, "remember", killed)
        prune(run, tmp_path, *ABLATE)
    with open(tmp_path / "progress-0.jsonl", "a") as file:
        file.write('["one ", "E:')  # stopped in the middle of a line
    assert not (tmp_path / "curve.csv").exists()
    assert prune(run, tmp_path, *ABLATE) == 0
    assert figures(ablated) == figures(tmp_path)


def test_importance_and_translation_can_share_a_split(run, tmp_path, monkeypatch):
    """It is read once; each cuts it in its own way."""
    args, cfg = parse(words_of(run, tmp_path, "--importance-subset", "valid"))
    study = prune_heads_study.open_study(args, cfg, None, args.path)
    monkeypatch.setattr(study.task, "load_dataset", None)
    before = [sample["id"].tolist() for sample in study.runner.batches]
    for rank in (0, 1):
        monkeypatch.setattr(prune_heads_study.processes, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(prune_heads_study.processes, "world_size", lambda: 2)
        shares = [sample["id"].tolist() for sample in prune_heads_measures.samples(study) if sample]
        assert shares == before[rank::2]
    again = prune_heads_study.open_runner(study, study.task)
    assert [sample["id"].tolist() for sample in again.batches] == before and len(before) == 3


def test_other_settings_need_force(run, tmp_path, undrawn, capsys):
    assert prune(run, tmp_path / "results", "--only-importance") == 0
    before = figures(tmp_path / "results")
    other = ["--only-importance", "--importance-unit", "token"]
    assert prune(run, tmp_path / "results", *other) == 2
    assert "importance_unit: 'sentence', now 'token'" in capsys.readouterr().err
    assert figures(tmp_path / "results") == before
    assert prune(run, tmp_path / "results", *other, "--force") == 0
    assert json.loads((tmp_path / "results" / "importance.json").read_text())["unit"] == "token"


def test_saved_checkpoint_translates_and_trains_on(run, tmp_path, undrawn, capsys):
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
    monkeypatch.setattr(prune_heads.ablation, "correlate", lambda one, other: Found(0.5, 0.1))
    assert prune(run, tmp_path / "results", *words, "--ratios", "0") == 0
    here, there = (rows(tmp_path / "results", f"ablation{where}") for where in ("", "-elsewhere"))
    assert here == there and {row["head"][0] for row in here} == {"A"}
    data = json.loads((tmp_path / "results" / "comparison.json").read_text())
    assert data["r"] == 0.5 and len(data["comparison"]) == 2  # the best head of each layer


def test_sets_that_cannot_be_compared_stop_no_study():
    said, same = [], prune_heads.ablation.Ablation("one", 30.0, {}, "")
    prune_heads.write_comparison(same, same, SimpleNamespace(say=said.append), "data2")
    assert len(said) == 1 and said[0].startswith("data2 is not compared: a correlation needs")


def test_dynamics_has_a_curve_for_each_checkpoint(run, tmp_path):
    (tmp_path / "early").mkdir()
    early = shutil.copy(run / "saved" / LAST, tmp_path / "early")
    paths = [early, run / "saved" / LAST]
    assert prune(run, tmp_path / "results", "--ratios", "0,1", "--checkpoints", *paths) == 0
    found = rows(tmp_path / "results", "dynamics")
    names = [f"{folder}/{LAST}" for folder in ("early", "saved")]
    assert [row["checkpoint"] for row in found] == [name for name in names for _ in range(2)]
    assert [row["share"] for row in found] == [0, 1, 0, 1]
    assert (tmp_path / "results" / "dynamics.svg").exists()


@pytest.mark.parametrize("order", ["ablation", "norm", "random"])
def test_other_orders(run, tmp_path, undrawn, order):
    words = ["--order", order, "--parts", "D", "--ratios", "0.5"]
    assert prune(run, tmp_path / "results", *words, "--min-heads-per-layer", "1") == 0
    [row] = rows(tmp_path / "results", "curve")
    assert set(row["pruned_heads"].replace("D", "")) <= set("0123456789:-, ")


def test_default_shares_stop_where_layers_keep_their_heads():
    args = argparse.Namespace(ratios=list(SHARES), save_ratio=[], min_heads_per_layer=1)
    prune_heads_study.limit_shares(args, parse_heads("E:1:1,2 E:2:1,2 A:1:1,2"))
    assert args.ratios == [0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_reestimated_importance(run, tmp_path, undrawn):
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
        (["--min-heads-per-layer", "9", "--ratios", "0.5"], "--min-heads-per-layer 9 lets 0 go"),
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
