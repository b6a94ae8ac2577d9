"""`fairseq-prune-heads --roles`, in this process, on a model of three updates."""

import csv
import json

import pytest
from stock import LAST, make_run
from test_head_parses import conllu

from lite_transformer_plugin.cli import prune_heads_roles, prune_heads_study
from lite_transformer_plugin.cli.prune_heads import main
from lite_transformer_plugin.heads.names import parse_heads
from lite_transformer_plugin.heads.roles import FIGURES

ROLES = ["--only-importance", "--importance-steps", "2", "--roles", "--cpu", "--num-workers", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with data, saved/checkpoint_last.pt and parses.conllu of the validation set."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    sentences = [line.split() for line in (folder / "valid.de").read_text().splitlines()]
    chains = [
        [(word, (i + 2) % (len(words) + 1), "next") for i, word in enumerate(words)]
        for words in sentences
    ]
    (folder / "parses.conllu").write_text(conllu(*chains))
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Without pictures, which take most of the time."""
    monkeypatch.setattr(prune_heads_study.Output, "draw", lambda *args: None)


def look(run, results, *words) -> int:
    model = ["--path", str(run / "saved" / LAST), "--results-dir", str(results)]
    return main([str(run / "data"), *model, *ROLES, *map(str, words)])


def rows(path, name):
    return json.loads((path / f"{name}.json").read_text())[name]


def figures(folder) -> dict[str, bytes]:
    kinds = (".csv", ".json", ".png", ".svg")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in kinds}


def assert_same(one, other, rel: float) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            number = isinstance(a[name], float)
            assert (pytest.approx(a[name], rel=rel, abs=1e-6) if number else a[name]) == b[name]


def test_every_head_has_a_row(run, tmp_path, capsys):
    assert look(run, tmp_path) == 0
    found, importance = rows(tmp_path, "roles"), rows(tmp_path, "importance")
    assert [row["head"] for row in found] == [row["head"] for row in importance]
    assert [row["importance"] for row in found] == [row["importance"] for row in importance]
    assert list(found[0]) == ["head", "importance", *FIGURES, "roles"]
    data = json.loads((tmp_path / "roles.json").read_text())
    assert data["subset"] == "valid" and data["thresholds"]["positional"] == 0.9
    assert data["figures"].keys() == FIGURES.keys()
    with open(tmp_path / "roles.csv") as file:
        table = list(csv.DictReader(file))
    assert [row["head"] for row in table] == [row["head"] for row in found]
    assert all((row["share_next"] == "") == (row["head"][0] == "D") for row in table)
    assert {row["head"][0] for row in rows(tmp_path, "agreement")} == set("EAD")
    assert (tmp_path / "roles.png").exists() and (tmp_path / "roles.svg").exists()
    assert not (tmp_path / "syntax.csv").exists()
    [line] = [s for s in capsys.readouterr().out.splitlines() if s.startswith("roles of")]
    assert line.startswith(f"roles of {len(found)} heads on valid: ")
    assert "most important heads have a role" in line


@pytest.mark.usefixtures("undrawn")
def test_batches_and_processes_change_nothing(run, tmp_path):
    parses = ["--parses", run / "parses.conllu"]
    assert look(run, tmp_path / "alone", *parses, "--batch-size", 16) == 0
    assert look(run, tmp_path / "shared", *parses, "--batch-size", 2, "--processes", 2) == 0
    for name in ("roles", "agreement", "syntax"):
        alone, shared = (rows(tmp_path / kind, name) for kind in ("alone", "shared"))
        for row in (*alone, *shared):
            row.pop("importance", None)  # two batches of another size
        assert_same(alone, shared, 1e-5)


@pytest.mark.usefixtures("undrawn")
def test_parses_tell_what_heads_follow(run, tmp_path, monkeypatch):
    monkeypatch.setattr(prune_heads_roles.syntax, "is_syntactic", is_first)
    assert look(run, tmp_path, "--parses", run / "parses.conllu") == 0
    found = rows(tmp_path, "syntax")
    words = [line.split() for line in (run / "valid.de").read_text().splitlines()]
    assert {row["count"] for row in found} == {sum(len(sentence) - 1 for sentence in words)}
    assert {row["head"][0] for row in found} == {"E"}
    # in a chain the next word is the governor: a fixed offset is always right
    assert {row["baseline"] for row in found} == {1.0}
    offsets = {row["direction"]: row["baseline_offset"] for row in found}
    assert offsets == {"to governor": 1, "to dependent": -1}
    first, *others = rows(tmp_path, "roles")
    assert first["roles"] == "syntactic" and first["relations"] == "next to governor"
    assert not any(row["roles"] + row["relations"] for row in others)


def is_first(row, least) -> bool:
    return (row["head"], row["direction"]) == ("E:1:1", "to governor")


@pytest.mark.usefixtures("undrawn")
def test_goes_on_after_it_was_stopped(run, tmp_path, monkeypatch):
    assert look(run, tmp_path / "whole") == 0
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prune_heads_roles, "roles_over_importance", stop)
        look(run, tmp_path / "parts")
    with monkeypatch.context() as patch:
        patch.setattr(prune_heads_roles, "watch", stop)  # nothing is measured again
        assert look(run, tmp_path / "parts") == 0
    assert figures(tmp_path / "whole") == figures(tmp_path / "parts")


def stop(*args):
    raise KeyboardInterrupt


@pytest.mark.usefixtures("undrawn")
def test_other_parses_are_measured_anew(run, tmp_path):
    path = tmp_path / "parses.conllu"
    text = (run / "parses.conllu").read_text()
    for relation in ("next", "follows"):
        path.write_text(text.replace("next", relation))
        assert look(run, tmp_path / "results", "--parses", path) == 0
        assert {row["relation"] for row in rows(tmp_path / "results", "syntax")} == {relation}


def test_the_summary_tells_whether_heads_that_matter_have_roles():
    heads = parse_heads("E:1:1-8")
    importance = {head: 1 / head.head for head in heads}
    kinds = {heads[1]: ["positional -1", "syntactic"], heads[7]: ["positional -1"]}
    assert prune_heads_roles.summary(importance, kinds, "valid") == (
        "roles of 8 heads on valid: 2 positional -1, 1 syntactic; 1 of the 2 most important heads "
        "have a role, 1 of the other 6"
    )


def test_parses_of_other_sentences_are_refused_before_anything_is_measured(run, tmp_path, capsys):
    lines = (run / "parses.conllu").read_text().split("\n\n")
    lines[2] = conllu([("zzz", 0, "root")]).rstrip("\n")
    (tmp_path / "other.conllu").write_text("\n\n".join(lines))
    assert look(run, tmp_path / "results", "--parses", tmp_path / "other.conllu") == 2
    [line] = complaints(capsys)
    assert "other.conllu has other sentences than --gen-subset valid: sentence 3 is 'zzz'" in line
    assert not (tmp_path / "results" / "importance.csv").exists()


def complaints(capsys) -> list[str]:
    found = capsys.readouterr().err.splitlines()
    return [line for line in found if "fairseq-prune-heads:" in line]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--parses", "none.conllu"], "--parses none.conllu: there is no such file"),
        (["--parses", __file__], "is no line of CoNLL-U: it is one word a line"),
        (["--gen-subset", "nowhere"], "--gen-subset nowhere: there is no such split"),
    ],
)
def test_bad_input_gets_one_line(run, tmp_path, capsys, words, message):
    assert look(run, tmp_path / "results", *words) == 2
    [line] = complaints(capsys)
    assert message in line


@pytest.mark.parametrize(
    "words, message",
    [
        (["--parses", __file__], "give --roles, too"),
        (["--roles", "--checkpoints", __file__], "--roles needs --path"),
    ],
)
def test_flags_that_do_not_go_together(run, tmp_path, capsys, words, message):
    model = [] if "--checkpoints" in words else ["--path", str(run / "saved" / LAST)]
    results = ["--results-dir", str(tmp_path / "results")]
    assert main([str(run / "data"), *model, *results, "--cpu", *words]) == 2
    [line] = complaints(capsys)
    assert message in line
