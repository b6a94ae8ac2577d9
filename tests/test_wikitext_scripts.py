"""The scripts of the language-model example: a small corpus to the end, the published one dry."""

import json
import shlex
import zipfile
from functools import partial
from pathlib import Path

import pytest
from translation_examples import configuration, lines, plain, read, script, succeeded

EXAMPLE = "wikitext-103"
SMALL = "--decoder-layers 1 --decoder-kernel-size-list 3 --max-update 2"
SETS = {"train": 150, "valid": 20, "test": 20}
run = partial(script, EXAMPLE)


def write_texts(folder: Path, name: str = "{}.txt") -> Path:
    folder.mkdir()
    for split, count in SETS.items():
        text = plain(lines(split, "en", 0, count))
        (folder / name.format(split)).write_text(text)
    return folder


def test_a_small_corpus_from_text_to_perplexity(tmp_path):
    work, data = tmp_path / "a folder", write_texts(tmp_path / "data")
    prepare_it = partial(run, "prepare", DATA=data, WORK=work, WORKERS=1, BPE_MERGES=300)
    succeeded(prepare_it())
    assert len(read(work / "words/train")) == 150
    assert any("@@ " in line for line in read(work / "pieces/test"))
    again = prepare_it()
    assert succeeded(again) == "" and len(again.stderr.splitlines()) == 1  # ready: nothing to do

    succeeded(run("train", *SMALL.split(), SIZE=192, WORK=work))
    folder = work / "lite_transformer_lm_small"
    assert (folder / "checkpoints/checkpoint_best.pt").exists()

    evaluate = partial(run, "evaluate", SIZE=192, WORK=work)
    results = {}
    for context in (0, 64):
        output = succeeded(evaluate(CONTEXT=context))
        name = f"test.checkpoint_best.context{context}"
        results[context] = json.loads((folder / name / "result.json").read_text())
        assert f"perplexity {results[context]['perplexity']:.2f} " in output
    words = sum(len(line.split()) + 1 for line in read(work / "words/test"))
    pieces = sum(len(line.split()) + 1 for line in read(work / "pieces/test"))
    assert all(result["tokens"] == pieces > words for result in results.values())
    assert results[0]["loss"] != results[64]["loss"]
    assert "perplexity" in succeeded(evaluate(CONTEXT=64))  # not evaluated again
    other = evaluate("--quiet", CONTEXT=64)
    assert other.returncode == 2 and "made by another command" in other.stderr


def test_the_published_corpus(tmp_path):
    """An archive is taken as it is; the command has the authors' settings in today's flags."""
    data, work = write_texts(tmp_path / "wikitext-103", "wiki.{}.tokens"), tmp_path / "work"
    archive = tmp_path / "copy.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in data.iterdir():
            packed.write(path, f"wikitext-103/{path.name}")
    succeeded(run("prepare", DATA=archive, WORK=work, WORKERS=1))
    assert not (work / "pieces").exists()
    assert (work / "data-bin/dict.txt").exists()

    shown = succeeded(run("train", DRY_RUN=1, WORK=work)).splitlines()[-1]
    cfg = configuration(shlex.split(shown))
    assert cfg.model._name == "lite_transformer_lm_wiki103"
    assert (cfg.optimizer._name, cfg.criterion._name) == ("nag", "adaptive_loss")
    schedule = cfg.lr_scheduler
    assert (schedule.lr, schedule.warmup_updates, schedule.lr_period_updates) == ([1.0], 16e3, 27e4)
    assert (schedule.t_mult, schedule.lr_shrink) == (2, 0.75)
    assert cfg.task.tokens_per_sample == cfg.dataset.max_tokens == 3072
    assert cfg.dataset.max_tokens * cfg.optimization.update_freq[0] == 73728
    assert cfg.optimization.clip_norm == 0.1

    failed = run("train", "--max-update", 1, WORK=work)  # 20,000 frequent words of so few
    assert failed.returncode == 1
    line = failed.stderr.splitlines()[-1]
    assert "--adaptive-input-cutoff (20000,60000) goes beyond the" in line


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("train", dict(SIZE="7"), "SIZE of lite_transformer (7) must be one of: 896 192"),
        ("train", dict(MODEL="lightconv"), "MODEL (lightconv) must be one of: "),
        ("evaluate", dict(CONTEXT="3072"), "CONTEXT (3072) must be below 3072"),
        ("evaluate", dict(CONTEXT="-1"), "CONTEXT (-1) must be a whole number from 0"),
        ("evaluate", dict(SUBSET="train"), "SUBSET (train) must be one of: test valid"),
        ("evaluate", dict(CHECKPOINT="/no.pt"), "CHECKPOINT (/no.pt) is not there"),
        ("evaluate", {}, "run train.sh first"),
    ],
)
def test_wrong_use(name, settings, message, tmp_path):
    (tmp_path / "data-bin").mkdir()
    result = run(name, WORK=tmp_path, **settings)
    assert result.returncode == 2
    assert result.stderr.startswith(f"{name}.sh: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_set_is_missing(tmp_path):
    data = write_texts(tmp_path / "data")
    (data / "valid.txt").unlink()
    result = run("prepare", DATA=data, WORK=tmp_path / "work", WORKERS=1)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "prepare.sh: --data has train.txt, but no valid.txt"


def test_a_small_update_is_one_batch(tmp_path):
    (tmp_path / "data-bin").mkdir()
    shown = succeeded(run("train", DRY_RUN=1, WORK=tmp_path, SIZE=192)).splitlines()[-1]
    cfg = configuration(shlex.split(shown))
    assert (cfg.dataset.max_tokens, cfg.optimization.update_freq) == (2048, [1])
