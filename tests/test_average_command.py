"""`fairseq-average-checkpoints`: what it writes serves stock commands; what it refuses, and how."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stock import SAVE_EPOCHS, full_disk, generate, make_data, train
from torch.testing import assert_close

from lite_transformer_plugin import __version__
from lite_transformer_plugin.cli.average_checkpoints import NAME, main


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Three epochs of three updates, with checkpoints of all three kinds."""
    folder = tmp_path_factory.mktemp("average")
    data = make_data(folder)
    saving = ["--save-interval-updates", 2, "--keep-best-checkpoints", 2]
    train(data, folder / "run", "--max-epoch", 3, *saving, how=SAVE_EPOCHS)
    return folder


def mean_of(paths: list[Path]) -> dict:
    models = [torch.load(path)["model"] for path in paths]
    return {name: sum(m[name].double() for m in models) / len(models) for name in models[0]}


def complaint(capsys, *argv) -> str:
    """The single line of a command that refuses."""
    assert main(list(map(str, argv))) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith(f"{NAME}: ")
    return output.err


@pytest.mark.parametrize(
    "words, names",
    [
        (["--num-epoch-checkpoints", "2"], ["checkpoint2", "checkpoint3"]),
        (
            ["--num-epoch-checkpoints", "2", "--checkpoint-upper-bound", "2"],
            ["checkpoint1", "checkpoint2"],
        ),
        (["--num-update-checkpoints", "2"], ["checkpoint_2_4", "checkpoint_3_8"]),
        (
            ["--num-update-checkpoints", "2", "--checkpoint-upper-bound", "4"],
            ["checkpoint_1_2", "checkpoint_2_4"],
        ),
    ],
)
def test_the_last_of_a_run(words, names, work, tmp_path, capsys):
    output = tmp_path / "mean.pt"
    assert main(["--inputs", str(work / "run"), "--output", str(output), *words]) == 0
    paths = [work / "run" / f"{name}.pt" for name in names]
    assert capsys.readouterr().out.splitlines()[:-1] == list(map(str, paths))
    model = torch.load(output)["model"]
    assert_close(model, mean_of(paths), rtol=1e-6, atol=1e-7, check_dtype=False, equal_nan=True)


def test_the_best_of_a_run_or_of_files(work, tmp_path):
    scored = sorted((work / "run").glob("checkpoint.best_loss_*.pt"))  # a low loss is good
    assert len(scored) == 2
    for inputs in ([work / "run"], scored[::-1]):
        words = ["--inputs", *inputs, "--output", tmp_path / "best.pt", "--force"]
        assert main([*map(str, words), "--num-best-checkpoints", "1"]) == 0
        expected = torch.load(scored[0])["model"]
        assert_close(torch.load(tmp_path / "best.pt")["model"], expected, equal_nan=True)


@pytest.fixture(scope="module")
def averaged(work) -> Path:
    """The mean of two named files, by a process of its own."""
    inputs = [work / "run/checkpoint3.pt", work / "run/checkpoint1.pt"]
    command = [sys.executable, "-m", "lite_transformer_plugin.cli.average_checkpoints"]
    command += ["--inputs", *inputs, "--output", work / "mean.pt"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    last = f"averaged 2 checkpoints, newest update 9: {work / 'mean.pt'}"
    assert result.stdout.splitlines() == [*map(str, inputs), last]
    assert result.stderr == ""
    return work / "mean.pt"


def test_what_is_written(averaged, work):
    newest, state = torch.load(work / "run/checkpoint3.pt"), torch.load(averaged)
    assert state.keys() == (newest.keys() | {"average"}) - {"last_optimizer_state"}
    assert state["cfg"] == newest["cfg"]
    assert state["optimizer_history"][-1]["num_updates"] == 9
    assert state["average"]["versions"]["lite-transformer-plugin"] == __version__
    assert [Path(name).name for name in state["average"]["checkpoints"]] == [
        "checkpoint3.pt",
        "checkpoint1.pt",
    ]
    shared = ["encoder.embed_tokens.weight", "decoder.output_projection.weight"]
    assert len({state["model"][name].untyped_storage().data_ptr() for name in shared}) == 1
    assert averaged.stat().st_size < 0.6 * (work / "run/checkpoint3.pt").stat().st_size


def test_stock_generation_translates_with_it(averaged, work, capsys):
    generate(work / "data", averaged)
    output = capsys.readouterr().out
    assert len(re.findall("^H-", output, re.MULTILINE)) == 7


def test_training_starts_from_it(averaged, work, tmp_path, caplog):
    """No update is done: what is saved is what was loaded."""
    caplog.set_level(logging.INFO)
    start = ["--finetune-from-model", averaged, "--lr", 0, "--max-update", 1]
    train(work / "data", tmp_path / "tuned", *start)
    assert f"loading pretrained model from {averaged}" in caplog.text
    tuned, mean = (
        torch.load(p)["model"] for p in (tmp_path / "tuned/checkpoint_last.pt", averaged)
    )
    assert_close(tuned, mean, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--num-epoch-checkpoints", 5], "found checkpoint1.pt, checkpoint2.pt, checkpoint3.pt"),
        (["--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 0], "found none among check"),
        (["--num-best-checkpoints", 3], "3 checkpoints with a score asked for, found checkpoint."),
        (["--num-epoch-checkpoints", 0], "--num-epoch-checkpoints (0) must be 1 or more"),
        (["--num-epoch-checkpoints", "x"], "invalid int value: 'x' (see --help)"),
        (["--num-epoch-checkpoints", 1, "--num-best-checkpoints", 1], "not allowed with argument"),
        (["--checkpoint-upper-bound", 3], "goes with --num-epoch-checkpoints or --num-update"),
        (["--num-best-checkpoints", 1, "--checkpoint-upper-bound", 3], "goes with --num-epoch"),
        ([], "is a folder: give files, or one folder and --num-"),
    ],
)
def test_a_run_that_does_not_serve(words, message, work, tmp_path, capsys):
    inputs = ["--inputs", work / "run", "--output", tmp_path / "mean.pt"]
    assert message in complaint(capsys, *inputs, *words)
    assert not list(tmp_path.iterdir())


def test_files_that_do_not_serve(work, tmp_path, capsys):
    good, output = work / "run/checkpoint1.pt", ["--output", tmp_path / "mean.pt"]
    (tmp_path / "text.pt").write_text("hello")
    cut = good.read_bytes()[: good.stat().st_size // 2]
    (tmp_path / "cut.pt").write_bytes(cut)
    state = torch.load(good)
    del state["model"]["encoder.layers.0.fc1.bias"]
    torch.save(state, tmp_path / "other.pt")
    for name, reason in {
        "text.pt": "is not a checkpoint",
        "cut.pt": "is cut short, or its header is damaged",
        "other.pt": "encoder.layers.0.fc1.bias is missing, but",
        "nowhere.pt": "is not there",
    }.items():
        line = complaint(capsys, "--inputs", good, tmp_path / name, *output)
        assert str(tmp_path / name) in line and reason in line
    line = complaint(capsys, "--inputs", good, good, *output, "--num-update-checkpoints", 1)
    assert "takes one folder" in line
    assert "is a folder" in complaint(capsys, "--inputs", good, work / "run", *output)
    assert not (tmp_path / "mean.pt").exists()


def test_an_output_that_exists_or_has_no_folder(work, tmp_path, capsys):
    inputs, output = ["--inputs", work / "run/checkpoint1.pt"], tmp_path / "mean.pt"
    output.write_text("precious")
    assert f"{output} exists" in complaint(capsys, *inputs, "--output", output)
    assert output.read_text() == "precious"
    missing = tmp_path / "nowhere/mean.pt"
    assert "there is no folder" in complaint(capsys, *inputs, "--output", missing)
    assert main([*map(str, inputs), "--output", str(output), "--force"]) == 0
    assert "model" in torch.load(output)


def test_a_full_disk_leaves_the_previous_output(work, tmp_path, capsys):
    output = tmp_path / "mean.pt"
    output.write_text("precious")
    with full_disk(20_000):
        line = complaint(
            capsys, "--inputs", work / "run/checkpoint1.pt", "--output", output, "--force"
        )
    assert f"cannot write a checkpoint into {tmp_path}" in line and "File too large" in line
    assert output.read_text() == "precious" and list(tmp_path.iterdir()) == [output]


def test_an_input_can_be_replaced(work, tmp_path):
    paths = [tmp_path / name for name in ("checkpoint1.pt", "checkpoint2.pt")]
    for path in paths:
        path.write_bytes((work / "run" / path.name).read_bytes())
    expected = mean_of(paths)
    words = ["--inputs", *paths, "--output", paths[0], "--force"]
    assert main(list(map(str, words))) == 0
    model = torch.load(paths[0])["model"]
    assert_close(model, expected, rtol=1e-6, atol=1e-7, check_dtype=False, equal_nan=True)
