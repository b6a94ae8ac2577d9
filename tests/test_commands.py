"""fairseq's own commands, each run once as a user runs it: another folder, `--user-dir` alone."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import lite_transformer_plugin
from lite_transformer_plugin.models.lite_transformer import LiteTransformerModel

PLUGIN = str(Path(lite_transformer_plugin.__file__).parent)
BIN = Path(sys.executable).parent
SIZES = (5, 7, 60, 63)  # test sets whose last batch stock fairseq would drop
MODEL = [
    "--arch",
    "lite_transformer",
    "--encoder-embed-dim",
    "16",
    "--encoder-layers",
    "2",
    "--decoder-layers",
    "2",
    "--share-all-embeddings",
]
TRAIN = [
    *MODEL,
    "--criterion",
    "label_smoothed_cross_entropy",
    "--label-smoothing",
    "0.1",
    "--optimizer",
    "adam",
    "--lr",
    "0.005",
    "--batch-size",
    "16",
    "--cpu",
    "--log-format",
    "simple",
    "--no-epoch-checkpoints",
]


def run(*command, cwd: Path, stdin: str | None = None) -> str:
    """Run one of fairseq's commands; its output, logs included. The command must succeed."""
    result = subprocess.run(
        [str(BIN / command[0]), *map(str, command[1:])],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


def write_corpus(folder: Path, name: str, count: int, seed: int) -> None:
    """Sentences of letters; the translation is upper case, back to front."""
    draw = random.Random(seed)
    rows = [draw.choices("abcdefgh", k=draw.randint(1, 9)) for _ in range(count)]
    (folder / f"{name}.de").write_text("".join(" ".join(row) + "\n" for row in rows))
    reversed_rows = (" ".join(row[::-1]).upper() for row in rows)
    (folder / f"{name}.en").write_text("".join(row + "\n" for row in reversed_rows))


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with binarised data and a model trained for some updates."""
    folder = tmp_path_factory.mktemp("commands")
    write_corpus(folder, "train", 320, seed=1)
    write_corpus(folder, "small", 16, seed=2)
    for i, count in enumerate((9, *SIZES)):
        write_corpus(folder, f"other{i}", count, seed=3 + i)
    tests = ",".join(f"other{i}" for i in range(1, len(SIZES) + 1))
    common = ["-s", "de", "-t", "en", "--workers", "1"]
    run(
        "fairseq-preprocess",
        *common,
        "--joined-dictionary",
        "--trainpref",
        "train",
        "--validpref",
        "other0",
        "--testpref",
        tests,
        "--destdir",
        "data",
        cwd=folder,
    )
    run(
        "fairseq-preprocess",
        *common,
        "--trainpref",
        "small",
        "--validpref",
        "other0",
        "--srcdict",
        "data/dict.de.txt",
        "--tgtdict",
        "data/dict.en.txt",
        "--destdir",
        "small",
        cwd=folder,
    )
    train(folder, "whole", updates=6)
    return folder


def train(folder: Path, save_dir: str, updates: int, data: str = "data", *more) -> str:
    return run(
        "fairseq-train",
        folder / data,
        "--user-dir",
        PLUGIN,
        *TRAIN,
        "--save-dir",
        folder / save_dir,
        "--max-update",
        updates,
        *more,
        cwd=folder,
    )


def model_of(checkpoint: Path) -> dict:
    return torch.load(checkpoint)["model"]


def test_resumed_equals_uninterrupted(work):
    """Dropout included: after three updates and a restart, the same weights."""
    train(work, "resumed", 3)
    log = train(work, "resumed", 6)
    assert "Loaded checkpoint" in log and "num_updates: 6" in log
    expected, resumed = (model_of(work / d / "checkpoint_last.pt") for d in ("whole", "resumed"))
    assert_close(resumed, expected, rtol=0, atol=0)


@pytest.mark.parametrize("subset, count", enumerate(SIZES))
def test_generate_translates_every_sentence(work, subset, count):
    name = "test" + (str(subset) if subset else "")
    output = run(
        "fairseq-generate",
        work / "data",
        "--user-dir",
        PLUGIN,
        "--path",
        work / "whole/checkpoint_last.pt",
        "--gen-subset",
        name,
        "--beam",
        "2",
        "--max-len-b",
        "10",
        "--print-alignment",
        "hard",
        "--cpu",
        cwd=work.parent,
    )
    numbers = [int(n) for n in re.findall(r"^H-(\d+)\t", output, re.MULTILINE)]
    assert sorted(numbers) == list(range(count))
    assert len(re.findall(r"^A-\d+\t", output, re.MULTILINE)) == count
    assert f"Translated {count} sentences" in output


def test_validate(work):
    output = run(
        "fairseq-validate",
        work / "data",
        "--user-dir",
        PLUGIN,
        "--task",
        "translation",
        "--batch-size",
        "8",
        "--path",
        work / "whole/checkpoint_last.pt",
        "--cpu",
        cwd=work.parent,
    )
    loss = float(re.search(r"valid .*\| loss ([\d.]+)", output).group(1))
    trained = torch.load(work / "whole/checkpoint_last.pt")["extra_state"]["val_loss"]
    assert loss == pytest.approx(trained, abs=2e-3)


def test_interactive_and_score(work):
    output = run(
        "fairseq-interactive",
        work / "data",
        "--user-dir",
        PLUGIN,
        "--path",
        work / "whole/checkpoint_last.pt",
        "--beam",
        "2",
        "--max-len-b",
        "10",
        "--cpu",
        cwd=work.parent,
        stdin="a b c\nh g\n",
    )
    hypotheses = [line.split("\t")[2] for line in output.splitlines() if line.startswith("H-")]
    assert len(hypotheses) == 2
    (work / "reference.txt").write_text("C B A\nG H\n")
    score = run(
        "fairseq-score",
        "--sys",
        work / "reference.txt",
        "--ref",
        work / "reference.txt",
        cwd=work.parent,
    )
    assert "BLEU4 = " in score


def test_from_pretrained_translates(work):
    model = LiteTransformerModel.from_pretrained(
        str(work / "whole"), "checkpoint_last.pt", str(work / "data")
    )
    single = model.translate("a b c", beam=2, max_len_b=10)
    assert single == model.translate(["a b c", "h"], beam=2, max_len_b=10)[0]


def test_hydra_train_builds_the_preset(work):
    run(
        "fairseq-hydra-train",
        "hydra.searchpath=[pkg://lite_transformer_plugin]",
        f"common.user_dir={PLUGIN}",
        "model=lite_transformer_iwslt_de_en_160",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "task=translation",
        f"task.data={work / 'data'}",
        "criterion=label_smoothed_cross_entropy",
        "optimizer=adam",
        "lr_scheduler=fixed",
        "optimization.lr=[0.001]",
        "dataset.batch_size=16",
        "optimization.max_update=2",
        "common.cpu=true",
        "distributed_training.distributed_world_size=1",
        f"checkpoint.save_dir={work / 'hydra'}",
        cwd=work,
    )
    state = torch.load(work / "hydra/checkpoint_last.pt")
    assert state["cfg"]["model"]["_name"] == "lite_transformer_iwslt_de_en_160"
    assert state["cfg"]["model"]["encoder_layers"] == 1
    weight = state["model"]["encoder.layers.0.self_attn.convolution.linear1.weight"]
    assert weight.shape == (80, 80)  # half of 160, no GLU


def train_on_two(folder: Path, *words) -> None:
    """One command per rank, as fairseq wants it without GPUs."""
    port = random.randint(20000, 60000)
    command = [BIN / "fairseq-train", folder / "small", "--user-dir", PLUGIN, *TRAIN, *words]
    command += ["--distributed-world-size", 2, "--distributed-backend", "gloo"]
    command += ["--distributed-init-method", f"tcp://127.0.0.1:{port}"]
    command += ["--distributed-no-spawn", "--ddp-backend", "legacy_ddp", "--distributed-rank"]
    ranks = [
        subprocess.Popen(
            [str(word) for word in (*command, rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    logs = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(logs)


def test_two_processes_equal_one_with_twice_the_batch(work):
    """Sixteen sentences: one batch of sixteen, or two of eight on two processes, restarted once.

    Plain gradient descent: Adam would blow up rounding where a gradient is zero by symmetry.
    """
    plain = ["--dropout", "0", "--optimizer", "sgd", "--lr", "0.1"]
    train(work, "one", 3, "small", *plain)
    for updates in (2, 3):
        options = ["--batch-size", 8, "--max-update", updates, "--save-dir", work / "two"]
        train_on_two(work, *plain, *options)
    one, two = (model_of(work / d / "checkpoint_last.pt") for d in ("one", "two"))
    assert_close(two, one, rtol=0, atol=1e-6)


def test_bad_sizes_stop_before_training(work):
    command = [
        str(BIN / "fairseq-train"),
        str(work / "data"),
        "--user-dir",
        PLUGIN,
        *TRAIN,
        "--encoder-embed-dim",
        "15",
        "--save-dir",
        str(work / "bad"),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert (
        result.stderr.strip()
        .splitlines()[-1]
        .startswith("ValueError: --encoder-embed-dim (15) must be even")
    )
    assert not list((work / "bad").glob("*.pt"))
