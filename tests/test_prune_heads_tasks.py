"""`fairseq-prune-heads` beyond translation: language models, classifiers, summarisers."""

import csv
import json
import random
import re
import shlex
from pathlib import Path

import pytest
import stock
from test_commands import PLUGIN

from lite_transformer_plugin import build
from lite_transformer_plugin.cli import prune_heads_study
from lite_transformer_plugin.cli.prune_heads import main
from lite_transformer_plugin.heads import list_heads

SMALL = "--max-update 4 --optimizer adam --lr 0.01 --cpu --no-epoch-checkpoints".split()
SMALL += "--disable-validation --log-format simple --num-workers 0 --batch-size 8".split()
MODELS = {
    "transformer_lm": "--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-output-dim 16 "
    "--decoder-input-dim 16 --decoder-layers 2 --decoder-attention-heads 4",
    "lite_transformer_lm": "--decoder-embed-dim 16 --decoder-layers 2 --decoder-attention-heads 4",
}
LM = ["--task", "language_modeling", "--tokens-per-sample", "24"]
PAIRS = ["--task", "sentence_prediction"]
JUDGED = [*PAIRS, "--criterion", "sentence_prediction"]
TRAIN_PAIRS = [*PAIRS, "--num-classes", "2", "--init-token", "0", "--separator-token", "2"]
TRAIN_PAIRS += ["--max-positions", "30", "--classification-head-name", "pairs"]
ROBERTA = "--arch roberta --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 2 "
ROBERTA += "--encoder-attention-heads 4 --shorten-method truncate"
STUDY = ["--cpu", "--batch-size", "4", "--ratios", "0,0.5,1"]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures take most of the time, and have tests of their own."""
    monkeypatch.setattr(prune_heads_study.Output, "draw", lambda *args: None)


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def sentence(draw: random.Random) -> str:
    return " ".join(f"w{draw.randint(0, 20)}" for _ in range(draw.randint(3, 12)))


def binarise(folder: Path, name: str, *words) -> Path:
    prefixes = [f"--{s}pref={folder / s}.{name}" for s in ("train", "valid", "test")]
    where = folder / "data" / (name if name != "text" else "")
    stock.call("preprocess", "--only-source", "--destdir", where, *prefixes, *words)
    return folder / "data"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(1)
    for split, count in (("train", 40), ("valid", 12), ("test", 9)):
        write_lines(folder / f"{split}.text", [sentence(draw) for _ in range(count)])
    return binarise(folder, "text")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(1)
    for split, count in (("train", 40), ("valid", 12), ("test", 9)):
        for side in ("input0", "input1"):
            write_lines(folder / f"{split}.{side}", [sentence(draw) for _ in range(count)])
        write_lines(folder / f"{split}.label", [str(i % 2) for i in range(count)])
    binarise(folder, "input0")
    binarise(folder, "input1", "--srcdict", folder / "data/input0/dict.txt")
    return binarise(folder, "label")


@pytest.fixture(scope="module", params=MODELS)
def language_model(request, text, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    words = ["--arch", request.param, *MODELS[request.param].split()]
    stock.call("train", text, "--user-dir", PLUGIN, *LM, *words, *SMALL, "--save-dir", folder)
    return folder / stock.LAST


@pytest.fixture(scope="module")
def classifier(pairs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    words = [*ROBERTA.split(), "--criterion", "sentence_prediction", *SMALL, "--save-dir", folder]
    stock.call("train", pairs, "--user-dir", PLUGIN, *TRAIN_PAIRS, *words)
    return folder / stock.LAST


def study(data: Path, path: Path, results: Path, *words) -> int:
    where = ["--path", path, "--results-dir", results]
    return main([str(word) for word in (data, *where, *STUDY, *words)])


def rows(results: Path, name: str) -> list[dict]:
    return json.loads((results / f"{name}.json").read_text())[name]


def validated(data: Path, path: Path, capsys, name: str, *words) -> float:
    """What fairseq-validate reports of the validation set."""
    where = ["--user-dir", PLUGIN, "--path", path, "--batch-size", 4, "--cpu", "--num-workers", 0]
    stock.call("validate", data, *where, "--log-format", "json", *words)
    return float(re.findall(rf'"valid_{name}": "(\S+)"', capsys.readouterr().out)[-1])


def trains_on(output: str, tmp_path: Path) -> None:
    """The line that the command prints, as it stands."""
    line = next(x for x in output.splitlines() if x.startswith("train it on: "))
    words = shlex.split(line.removeprefix("train it on: "))[1:]
    words[words.index("--user-dir") + 1] = PLUGIN
    more = ["--max-update", 1, "--cpu", "--save-dir", tmp_path / "on", "--disable-validation"]
    stock.call("train", *words, *more, "--num-workers", 0)
    assert (tmp_path / "on" / stock.LAST).exists()


def test_language_model(text, language_model, tmp_path, capsys):
    words = [*LM, "--ablate", "one", "--save-ratio", "0.5", "--importance-unit", "token"]
    assert study(text, language_model, tmp_path / "found", *words) == 0
    output = capsys.readouterr().out
    ablation = json.loads((tmp_path / "found/ablation.json").read_text())
    assert ablation["metric"] == "perplexity" and len(ablation["ablation"]) == 8
    assert "test:bootstrap" in ablation["signature"]
    expected = validated(text, language_model, capsys, "ppl", *LM)
    assert ablation["base"] == pytest.approx(expected, abs=0.01)
    curve = rows(tmp_path / "found", "curve")
    assert curve[0]["perplexity"] == ablation["base"]

    saved = tmp_path / "found/pruned-50.pt"
    assert len(list_heads(build.checkpoint(saved)[0])) == 4
    found = validated(text, saved, capsys, "ppl", *LM)
    assert found == pytest.approx(curve[1]["perplexity"], abs=0.01)
    trains_on(output, tmp_path)


def test_order_by_ablation_of_a_perplexity(text, language_model, tmp_path):
    """The head whose loss costs least goes first: the one with the lowest perplexity."""
    words = [*LM, "--order", "ablation", "--ratios", "0,0.125"]
    assert study(text, language_model, tmp_path, *words, "--ablate", "one") == 0
    alone = {row["head"]: row["perplexity"] for row in rows(tmp_path, "ablation")}
    assert rows(tmp_path, "curve")[1]["pruned_heads"] == min(alone, key=alone.get)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
def test_classifier(pairs, classifier, metric, tmp_path, capsys):
    kind = "one" if metric == "accuracy" else "all-but-one"
    words = [*PAIRS, "--metric", metric, "--ablate", kind, "--save-ratio", "0.5"]
    assert study(pairs, classifier, tmp_path / "found", *words) == 0
    output = capsys.readouterr().out
    ablation = json.loads((tmp_path / "found/ablation.json").read_text())
    assert ablation["metric"] == metric and len(ablation["ablation"]) == 8
    with open(tmp_path / "found/curve.csv") as file:
        assert metric in next(csv.reader(file))
    if metric == "accuracy":
        assert "McNemar" in ablation["signature"]
        for path, score in (
            (classifier, ablation["base"]),
            (tmp_path / "found/pruned-50.pt", rows(tmp_path / "found", "curve")[1]["accuracy"]),
        ):
            assert validated(pairs, path, capsys, "accuracy", *JUDGED) == pytest.approx(
                score, abs=0.1
            )
        trains_on(output, tmp_path)


def test_roles_of_a_classifier(pairs, classifier, tmp_path):
    assert study(pairs, classifier, tmp_path, *PAIRS, "--roles", "--only-importance") == 0
    assert len(rows(tmp_path, "roles")) == 8


def test_importance_of_the_last_layer_is_at_the_first_token(pairs, classifier, tmp_path):
    """Per sentence and per token: the sums are the same there, the denominators are not."""
    found = {}
    for unit in ("sentence", "token"):
        words = [*PAIRS, "--only-importance", "--raw-importance", "--importance-unit", unit]
        assert study(pairs, classifier, tmp_path / unit, *words) == 0
        found[unit] = {r["head"]: r["importance"] for r in rows(tmp_path / unit, "importance")}
    ratios = [found["token"][f"E:2:{h}"] / found["sentence"][f"E:2:{h}"] for h in (1, 2, 3, 4)]
    assert ratios == pytest.approx([ratios[0]] * 4, rel=1e-5) and ratios[0] < 0.2


def test_summaries(tmp_path):
    stock.make_run(tmp_path)
    words = ["--metric", "rouge", "--beam", "2", "--max-len-b", "10"]
    path, results = tmp_path / "saved" / stock.LAST, tmp_path / "found"
    assert study(tmp_path / "data", path, results, *words) == 0
    assert 0 <= rows(results, "curve")[0]["rouge"] <= 100


def test_a_source_longer_than_the_positions(tmp_path, capsys):
    stock.make_run(tmp_path)
    path, results = tmp_path / "saved" / stock.LAST, tmp_path / "found"
    few = ["--max-source-positions", "8"]
    assert study(tmp_path / "data", path, results, *few) == 2
    assert "is invalid (=(" in capsys.readouterr().err
    few += ["--skip-invalid-size-inputs-valid-test", "--max-len-b", "10"]
    assert study(tmp_path / "data", path, results, *few, "--force") == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["--metric", "bleu"], "--metric bleu does not fit --task sentence_prediction"),
        (["--metric", "rouge"], "--metric rouge does not fit --task sentence_prediction"),
    ],
)
def test_metrics_that_do_not_fit(pairs, classifier, words, message, tmp_path, capsys):
    assert study(pairs, classifier, tmp_path / "found", *PAIRS, *words) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_label_unseen_in_training(pairs, classifier, tmp_path, capsys):
    other = tmp_path / "data"
    for split, count in (("train", 8), ("valid", 8), ("test", 8)):
        for side in ("input0", "input1"):
            write_lines(tmp_path / f"{split}.{side}", ["w1 w2"] * count)
        write_lines(tmp_path / f"{split}.label", ["other"] * count)
    for side in ("input0", "input1", "label"):
        binarise(tmp_path, side, "--srcdict", pairs / side / "dict.txt")
    assert study(other, classifier, tmp_path / "found", *PAIRS) == 2
    assert "a label was unseen in training, which knew" in capsys.readouterr().err


def test_older_results_stay_usable(text, language_model, tmp_path):
    """Made before a flag was there they count as made with its default."""
    words = [*LM, "--only-importance"]
    assert study(text, language_model, tmp_path, *words) == 0
    settings = json.loads((tmp_path / "settings.json").read_text())
    del settings["metric"], settings["roles"]
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert study(text, language_model, tmp_path, *words) == 0
