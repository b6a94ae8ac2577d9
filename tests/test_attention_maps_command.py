"""`fairseq-attention-maps`: pictures and figures of every kind of model, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
import torch
from hf_folders import make
from stock import LAST, NO_VALIDATION, call, make_data, train
from torch.testing import assert_close

from lite_transformer_plugin.cli import attention_maps, import_checkpoint
from lite_transformer_plugin.cli.attention_maps import NAME, main, parse
from lite_transformer_plugin.heads.attention_maps import attention_maps as maps_of
from lite_transformer_plugin.texts import open_reader


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Two translation models, a language model, a BERT."""
    folder = tmp_path_factory.mktemp("maps")
    data = make_data(folder)
    train(data, folder / "lite", "--max-update", 1, NO_VALIDATION)
    sizes = ["--encoder-embed-dim", 16, "--encoder-layers", 2, "--decoder-layers", 1]
    stock = ["--arch", "transformer_tiny", "--encoder-attention-heads", 4, *sizes]
    train(data, folder / "stock", *stock, "--max-update", 1, NO_VALIDATION)
    words = ["--only-source", "--trainpref", folder / "train.de", "--workers", 1]
    call("preprocess", *words, "--destdir", folder / "lm-data")
    how = ["--arch", "transformer_lm", "--task", "language_modeling", "--decoder-layers", 1]
    how += ["--decoder-embed-dim", 16, "--decoder-attention-heads", 2, "--batch-size", 2]
    how += ["--tokens-per-sample", 16, "--optimizer", "adam", "--lr", 0.01, "--cpu"]
    train(folder / "lm-data", folder / "lm", "--max-update", 1, NO_VALIDATION, how=how)
    make(folder / "hf", "bert")
    (folder / "bert").mkdir()
    words = ["--from", "hf-bert", str(folder / "hf"), "--output", str(folder / "bert/model.pt")]
    assert import_checkpoint.main([*words, "--num-classes", "2"]) == 0
    return folder


def look(work: Path, output: Path, *words) -> list[dict]:
    """Run the command; the rows of its table."""
    assert main([*map(str, words), "--results-dir", str(output), "--cpu"]) == 0
    with (output / "attention.csv").open() as file:
        return list(csv.DictReader(file))


def words_of(output: Path) -> dict:
    return json.loads((output / "attention.json").read_text())["words"]


def pictures(output: Path) -> set[str]:
    return {path.name for path in output.glob("*.png")}


def vocabulary(work: Path, name: str = "data/dict.de.txt") -> list[str]:
    return [line.split()[0] for line in (work / name).read_text().splitlines()]


def test_a_translation_model_and_its_own_translation(work, tmp_path):
    text = " ".join(vocabulary(work)[:4])
    rows = look(work, tmp_path, "--path", work / "lite" / LAST, "--text", text)
    assert pictures(tmp_path) == {f"attention-{part}.png" for part in "EAD"}
    assert [row["head"] for row in rows][:2] == ["E:1:1", "E:1:2"]
    words = words_of(tmp_path)["lite_transformer"]
    assert words["source"] == [*text.split(), "</s>"]
    assert words["target"][0] == "</s>"
    given = tmp_path / "given"
    look(work, given, "--path", work / "lite" / LAST, "--text", text, "--target", text)
    assert words_of(given)["lite_transformer"]["target"] == ["</s>", *text.split()]


def test_what_is_drawn_is_what_the_model_computes(work, tmp_path, monkeypatch):
    text = " ".join(vocabulary(work)[:5])
    words = ["--path", str(work / "stock" / LAST), "--text", text, "--target", text, "--cpu"]
    words += ["--results-dir", str(tmp_path), "--heads", "E:2:3 D:1:1-2"]
    sheets = {}
    monkeypatch.setattr(attention_maps, "map_sheet", lambda *b: sheets.update([b[::-1]]))
    monkeypatch.setattr(attention_maps.report, "save_figure", lambda *_: None)
    assert main(words) == 0
    drawn = [p for blocks in sheets.values() for b in blocks.values() for row in b for p in row]
    assert [panel.title.split()[0] for panel in drawn] == ["E:2:3", "D:1:1", "D:1:2"]
    _, cfg = parse(words)
    reader = open_reader(work / "stock" / LAST, cfg)
    maps = maps_of(reader.model, reader.read(text, text).sample)
    assert_close(drawn[0].weights, maps["E", 2][0, 2])
    assert_close(drawn[2].weights, maps["D", 1][0, 1])
    assert [len(drawn[0].queries), len(drawn[2].keys)] == [6, 6]
    assert main([*words, "--average", "--force"]) == 0
    mean = list(list(sheets.values())[-1].values())[0][0][0]
    assert_close(mean.weights, maps["D", 1][0, :2].mean(0))


def test_two_models_and_figures_of_a_file(work, tmp_path):
    lines = [" ".join(vocabulary(work)[i : i + 4]) for i in range(3)]
    (tmp_path / "texts").write_text("".join(f"{line}\t{line}\n" for line in lines))
    both = ["--path", work / "stock" / LAST, work / "lite" / LAST, "--input", tmp_path / "texts"]
    rows = look(work, tmp_path / "all", *both, "--parts", "E")
    assert pictures(tmp_path / "all") == {"attention-E.png"}
    assert {row["model"] for row in rows} == {"transformer_tiny", "lite_transformer"}
    single = [
        look(work, tmp_path / str(i), *both[:3], "--text", line, "--target", line, "--parts", "E")
        for i, line in enumerate(lines)
    ]
    for several in zip(rows, *single, strict=True):
        figures = [float(row["diagonal"]) for row in several]
        assert figures[0] == pytest.approx(sum(figures[1:]) / 3)


def test_a_language_model(work, tmp_path):
    text = " ".join(vocabulary(work, "lm-data/dict.txt")[:4])
    rows = look(work, tmp_path, "--path", work / "lm" / LAST, "--text", text)
    assert [row["head"] for row in rows] == ["D:1:1", "D:1:2"]
    assert words_of(tmp_path)["transformer_lm"]["target"] == ["</s>", *text.split()]
    assert pictures(tmp_path) == {"attention-D.png"}


def test_pairs_of_a_bert(work, tmp_path):
    words = ["--path", work / "bert/model.pt", "--text", "the cat", "--second", "a dog ."]
    look(work, tmp_path, *words)
    assert words_of(tmp_path)["bert"]["source"] == "<s> the cat </s> a dog . </s>".split()
    assert pictures(tmp_path) == {"attention-E.png"}
    single = look(work, tmp_path / "single", *words[:4])
    assert words_of(tmp_path / "single")["bert"]["source"] == "<s> the cat </s>".split()
    assert len(single) == 4


def complaint(capsys, *argv) -> str:
    """The single line of a command that refuses."""
    assert main(list(map(str, argv))) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith(f"{NAME}: ")
    return output.err


def test_what_is_refused(work, tmp_path, capsys):
    bert = ["--path", work / "bert/model.pt", "--results-dir", tmp_path]
    said = complaint(capsys, *bert, "--text", "the cat " * 30)
    assert "62 tokens is longer than the model's 40 positions" in said
    assert "no word in the text" in complaint(capsys, *bert, "--text", " ")
    assert "give --text" in complaint(capsys, *bert)
    assert "E:9:1: the model has" in complaint(capsys, *bert, "--text", "a", "--heads", "E:9:1")
    assert "unrecognized" in complaint(capsys, *bert, "--text", "a", "--colour", "red")
    assert "no part 'X'" in complaint(capsys, *bert, "--text", "a", "--parts", "X")
    (tmp_path / "attention.csv").touch()
    assert "or --force" in complaint(capsys, *bert, "--text", "a")
    lm = ["--path", work / "lm" / LAST, "--results-dir", tmp_path / "lm"]
    said = complaint(capsys, *lm, "--text", "a", "--second", "b")
    assert "a language model reads one text" in said
    elsewhere = ["--path", work / "lite" / LAST, "--results-dir", tmp_path / "no"]
    said = complaint(capsys, *elsewhere, "--text", "a", "--data", tmp_path)
    assert "give the folder of the training data by --data" in said
    torch.save({"x": 1}, tmp_path / "x.pt")
    said = complaint(
        capsys, "--path", tmp_path / "x.pt", "--results-dir", tmp_path / "x", "--text", "a"
    )
    assert "not a fairseq checkpoint" in said
