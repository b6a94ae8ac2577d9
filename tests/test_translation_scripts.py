"""The scripts of the translation examples as a user runs them: to the end, again, and wrongly."""

import fcntl
from functools import partial
from pathlib import Path

import pytest
import torch
from translation_examples import (
    EN_DE,
    IWSLT,
    ONE_LAYER,
    read,
    results,
    script,
    stand_in,
    succeeded,
    text_steps,
    write_en_de,
    write_iwslt,
)


@pytest.fixture(scope="module")
def empty_work(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("empty")
    (work / "data-bin").mkdir()
    return work


def test_running_training_again(empty_work, tmp_path):
    """Checkpoints stay unless FORCE=1; a failure is told with its last line; no two at once."""
    stand_in(tmp_path / "fairseq-train", "echo no luck today; exit ${STATUS:-0}")
    train = partial(script, IWSLT, "train", WORK=empty_work, RUN="again", path=f"{tmp_path}:")
    checkpoint = empty_work / "again/checkpoints/checkpoint_last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    succeeded(train())
    failed = train(STATUS=3)
    assert failed.returncode == 3 and failed.stderr.count("\n") == 1
    assert "(exit status 3): no luck today" in failed.stderr
    with open(empty_work / "again/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = train(FORCE=1)
        assert refused.returncode == 2 and "another training is at work" in refused.stderr
    assert checkpoint.exists()
    succeeded(train(FORCE=1))
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    "name, words, settings, message",
    [
        ("prepare", ["--workers", "0"], {}, "--workers (0) must be a whole number above 0"),
        ("prepare", ["--bpe-merges", "x"], {}, "--bpe-merges (x) must be a whole number above 0"),
        ("prepare", ["--data", "/no/such"], {}, "--data (/no/such) is not there"),
        ("prepare", ["--sorted"], {}, "unrecognized arguments: --sorted"),
        ("train", [], dict(MODEL="rnn"), "MODEL (rnn) must be one of: "),
        ("train", [], dict(SIZE="7"), "SIZE of lite_transformer (7) must be one of: 160 240 320"),
        ("train", [], dict(WORK="/no/such"), "no data in WORK (/no/such): run prepare.sh first"),
        ("train", [], dict(GPUS="two"), "GPUS (two) must be a whole number from 0"),
        ("train", [], dict(GPUS="3"), "must divide 4096, the tokens of an update"),
        ("train", [], dict(MAX_TOKENS="3000"), "MAX_TOKENS (3000) must divide 4096"),
        ("train", [], dict(RUN="a/b"), "RUN (a/b) must be a plain name"),
        ("train", [], dict(FP16="1"), "FP16 (1) needs a GPU"),
        ("train", [], dict(NODES="2"), "MASTER () must be HOST:PORT of the first node"),
        ("train", [], dict(LAUNCHER="slurm"), "LAUNCHER=slurm needs a job of Slurm"),
        ("evaluate", [], dict(SUBSET="dev"), "SUBSET (dev) must be one of: test valid"),
        ("evaluate", [], dict(CHECKPOINT="/no.pt"), "CHECKPOINT (/no.pt) is not there"),
        ("evaluate", [], {}, "run train.sh first"),
    ],
)
def test_wrong_use(name, words, settings, message, empty_work):
    result = script(IWSLT, name, *words, **({"WORK": empty_work} | settings))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"{name}.sh: ") and message in result.stderr


def test_iwslt_from_corpus_to_score(tmp_path):
    work, run = tmp_path / "a folder", "lite_transformer_iwslt_de_en_160"
    data = write_iwslt(tmp_path / "data")
    prepare_it = partial(script, IWSLT, "prepare", DATA=data, WORK=work, WORKERS=2)
    succeeded(prepare_it(BPE_MERGES=800))
    assert read(work / "data-bin/dict.de.txt") != read(work / "data-bin/dict.en.txt")
    again = prepare_it(BPE_MERGES=800)
    assert succeeded(again) == "" and len(again.stderr.splitlines()) == 1  # ready: nothing to do
    other = prepare_it(BPE_MERGES=200)
    assert other.returncode == 2 and "was prepared with other settings" in other.stderr

    succeeded(script(IWSLT, "train", "--max-epoch", 2, *ONE_LAYER, WORK=work))
    assert (work / run / "checkpoints/checkpoint2.pt").exists()

    evaluate = partial(script, IWSLT, "evaluate", WORK=work, AVERAGE=2)
    output = succeeded(evaluate("--max-len-b", 10))
    result = results(work, run, "test.average2")
    assert "BLEU4 = " in output and "|case:lc|" in output
    assert result["sentences"] == 10 and "|case:lc|" in result["signature"]
    folder = work / run / "test.average2"
    # pieces that are in no training sentence, of so few, are unknown to the dictionary
    compared = zip(read(folder / "references.tokens"), read(work / "words/test.en"), strict=True)
    known = [(ours, words) for ours, words in compared if "<<unk>>" not in ours]
    assert len(known) > 5 and all(ours == words for ours, words in known)
    weights = torch.load(work / run / "average2.pt")["model"]
    parts = [torch.load(work / run / f"checkpoints/checkpoint{n}.pt")["model"] for n in (1, 2)]
    name = "encoder.layers.0.fc1.weight"
    torch.testing.assert_close(weights[name], (parts[0][name] + parts[1][name]) / 2)

    other = evaluate("--max-len-b", 11)
    assert other.returncode == 2 and "made by another command" in other.stderr
    stand_in(tmp_path / "fairseq-generate", "exit 1")  # it is not asked again
    stand_in(tmp_path / "fairseq-score", "echo BLEU4 = 1.00")
    again = evaluate("--max-len-b", 10, path=f"{tmp_path}:")
    assert "BLEU4 = 1.00" in succeeded(again) and "|case:lc|" in again.stdout


def test_wmt_en_de_from_corpus_to_score(tmp_path):
    work, run = tmp_path / "work", "lite_transformer_wmt_en_de_200"
    data = write_en_de(tmp_path / "data")
    succeeded(script(EN_DE, "prepare", DATA=data, WORK=work, WORKERS=1, BPE_MERGES=800))
    dictionaries = [read(work / f"data-bin/dict.{language}.txt") for language in ("en", "de")]
    assert dictionaries[0] == dictionaries[1]
    assert len(read(work / "pieces/valid.de")) == 10

    few = ["--max-update", 2, "--update-freq", 1, "--max-tokens", 1000]
    succeeded(script(EN_DE, "train", *few, *ONE_LAYER, WORK=work))
    state = torch.load(work / run / "checkpoints/checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["model"]["_name"] == run

    output = succeeded(script(EN_DE, "evaluate", "--max-len-b", 10, WORK=work))
    assert "compounds split" in output and "BLEU4 = " in output and "|case:mixed|" in output
    result = results(work, run, "test.best")
    assert result["sentences"] == 10 and result["compounds_split"]
    expected = [text_steps.split_compounds(line) for line in read(work / "words/test.de")]
    assert any("##AT##-##AT##" in line for line in expected)
    assert read(work / run / "test.best/references.tokens") == expected
