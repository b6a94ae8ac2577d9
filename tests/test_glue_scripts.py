"""The scripts of examples/glue on a tiny BERT and a few pairs, from files to the speed of half."""

import json
from functools import partial

import pytest
from hf_folders import make
from translation_examples import script, succeeded

LABELS = ["same", "related", "other"]
WORDS = "the cat sat on mat a dog un naive , . ;".split()
run = partial(script, "glue", TASK="pairs", BATCH=4, EPOCHS=1)


def pairs(start: int, count: int) -> str:
    """Lines of `pairs`: two sentences and a label."""
    rows = ((WORDS[i % 12], WORDS[i % 7], LABELS[i % 3]) for i in range(start, start + count))
    return "".join(f"the {first}\ta {second}\t{label}\n" for first, second, label in rows)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    (folder / "data").mkdir()
    for name, start, count in ("train", 0, 9), ("dev", 9, 6), ("test", 15, 6):
        (folder / "data" / f"{name}.tsv").write_text(pairs(start, count))
    work, model = folder / "a folder", make(folder / "hf", "bert")
    succeeded(run("prepare", WORK=work, DATA=folder / "data", MODEL=model))
    return work


def test_a_bert_is_fine_tuned_scored_and_studied(prepared):
    work = prepared
    again = run("prepare", WORK=work, DATA=work, MODEL=work)
    assert again.returncode == 2 and "FORCE=1 begins anew" in again.stderr

    assert "3 updates of 4 examples" in succeeded(run("train", WORK=work))
    assert (work / "pairs/checkpoints/checkpoint_best.pt").exists()
    assert "accuracy" in succeeded(run("evaluate", WORK=work))

    words = "--ratios 0,0.5 --no-progress-bar".split()
    study = partial(run, "heads", *words, WORK=work, STEPS=1)
    output = succeeded(study(ONLY="by-importance", TOKENS=5, REPEATS=1, BATCHES=2))
    assert "relative" in output
    results = work / "pairs/heads"
    assert [path.name for path in results.glob("*/curve.csv")] == ["curve.csv"]
    assert (work / "pairs/test.pruned-50.log").exists()
    speed = json.loads((results / "speed-2.json").read_text())
    assert len(speed["models"]) == 2


def test_what_is_missing_is_named(tmp_path):
    for name, expected in {
        "prepare": "DATA () must be the folder with the files of pairs",
        "train": "is not prepared: run prepare.sh first",
        "evaluate": "run train.sh first",
        "heads": "run train.sh first",
    }.items():
        refused = run(name, WORK=tmp_path)
        assert refused.returncode == 2 and expected in refused.stderr, name
