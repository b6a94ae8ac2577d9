"""Language models and classifiers: compressed, loaded by stock commands, trained on, rounded."""

import logging
import re
import shlex
from pathlib import Path

import pytest
import torch
from compressed_checkpoints import code
from conftest import randomise
from head_models import model_of
from stock import LAST, NO_VALIDATION, PLUGIN, call, make_data, train

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli.compress import main
from lite_transformer_plugin.cli.fine_tuning import fine_tuning_command
from lite_transformer_plugin.compression import KEY, expand, unpack
from lite_transformer_plugin.compression.quantize import rounded
from lite_transformer_plugin.models.compressed import trainable

HOW = ["--optimizer", "adam", "--lr", 0.005, "--batch-size", 8, "--cpu", "--log-format", "simple"]
HOW += ["--no-epoch-checkpoints", "--max-update", 1, "--num-workers", 0]
NARROW = [word for name in ("embed", "input", "output") for word in (f"--decoder-{name}-dim", 32)]
NARROW += ["--decoder-layers", 2, "--decoder-ffn-embed-dim", 32]
CUTOFFS = "--adaptive-input --adaptive-input-cutoff 6,9 --adaptive-softmax-cutoff 6,9".split()
CUTOFFS += "--adaptive-input-factor 2 --adaptive-softmax-factor 2 --tie-adaptive-weights".split()
LM = ["--task", "language_modeling", "--tokens-per-sample", 16]
PAIRS = ["--task", "sentence_prediction", "--num-classes", 2]
WIDE = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-layers", 2]
MODELS = {
    "lite_transformer_lm": (LM, ["--arch", "lite_transformer_lm", *NARROW]),
    "transformer_lm, adaptive": (
        LM,
        ["--arch", "transformer_lm", *NARROW, *CUTOFFS]
        + ["--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"],
    ),
    "roberta": (
        [*PAIRS, "--max-positions", 32],
        ["--arch", "roberta", *WIDE, "--encoder-attention-heads", 4]
        + ["--criterion", "sentence_prediction", "--shorten-method", "truncate"],
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """Texts for a language model, and the same with labels."""
    folder = tmp_path_factory.mktemp("tasks")
    make_data(folder)
    prefixes = [f"--{split}pref={folder / split}.de" for split in ("train", "valid")]
    only = ["--only-source", "--workers", 1]
    call("preprocess", *only, *prefixes, "--destdir", folder / "lm")
    call("preprocess", *only, *prefixes, "--destdir", folder / "pairs/input0")
    for split in ("train", "valid"):
        lines = (folder / f"{split}.de").read_text().splitlines()
        labels = ("long" if len(line.split()) > 4 else "short" for line in lines)
        (folder / f"{split}.label").write_text("".join(f"{label}\n" for label in labels))
    prefixes = [f"--{split}pref={folder / split}.label" for split in ("train", "valid")]
    call("preprocess", *only, *prefixes, "--destdir", folder / "pairs/label")
    return {"language_modeling": folder / "lm", "sentence_prediction": folder / "pairs"}


@pytest.fixture(scope="module", params=MODELS)
def made(request, data, tmp_path_factory):
    """Data, flags of the task, a trained checkpoint, and what fairseq-compress made of it."""
    task, how = MODELS[request.param]
    folder = tmp_path_factory.mktemp("made")
    where = data[task[1]]
    train(where, folder, *task, *how, NO_VALIDATION, how=HOW)
    model = randomise(build.checkpoint(folder / LAST)[0])
    state = checkpoint_files.read(folder / LAST) | {"model": model.state_dict()}
    torch.save(state, folder / "start.pt")
    argv = [where, *task, "--path", folder / "start.pt", "--bits", 4, "--sparsity", 0.3]
    argv += ["--output", folder / "small.pt", "--cpu", "--batch-size", 4]
    if task[1] == LM[1]:
        argv += ["--sample-break-mode", "eos"]
    assert main(list(map(str, argv))) == 0
    return where, task, folder


def valid_loss(where: Path, task: list, path: Path, caplog, capsys) -> str:
    """As a stock command prints it."""
    caplog.clear(), capsys.readouterr()
    words = [where, "--user-dir", PLUGIN, "--path", path, "--cpu", "--batch-size", 4]
    if task[1] == "language_modeling":
        caplog.set_level(logging.INFO)
        call("eval_lm", *words, "--gen-subset", "valid", "--sample-break-mode", "eos")
        return re.search(r"Loss \(base 2\): (\S+),", caplog.text)[1]
    words += [*task[:2], "--criterion", "sentence_prediction", "--log-format", "json"]
    call("validate", *words, "--num-workers", 0)
    return re.search(r'"valid_loss": "(\S+)"', capsys.readouterr().out)[1]


def test_stock_commands_see_the_expanded_model(made, caplog, capsys):
    where, task, folder = made
    model, _ = build.checkpoint(folder / "small.pt")
    state = checkpoint_files.read(folder / "start.pt")
    torch.save(state | {"model": model.state_dict()}, folder / "expanded.pt")
    small = valid_loss(where, task, folder / "small.pt", caplog, capsys)
    assert small == valid_loss(where, task, folder / "expanded.pt", caplog, capsys)
    assert small != valid_loss(where, task, folder / "start.pt", caplog, capsys)


def test_the_printed_line_trains_and_its_checkpoint_is_rounded(made, capsys):
    """To a file of the size it had, with the values it was trained to."""
    where, task, folder = made
    line = fine_tuning_command(folder / "small.pt", str(where))
    words = shlex.split(line.replace("lite_transformer_plugin", PLUGIN))[1:]
    call("train", *words, "--save-dir", folder / "on", *HOW[6:], NO_VALIDATION, "--cpu")
    before = unpack(checkpoint_files.read(folder / "small.pt")["model"][KEY])
    after = unpack(checkpoint_files.read(folder / "on" / LAST)["model"][KEY])
    assert any(not torch.equal(expand(before[n]), expand(after[n])) for n in before)
    argv = [where, *task, "--path", folder / "on" / LAST, "--output", folder / "final.pt", "--cpu"]
    assert main(list(map(str, [*argv, "--batch-size", 4]))) == 0
    assert "as trained" in capsys.readouterr().out
    sizes = [(folder / name).stat().st_size for name in ("small.pt", "final.pt")]
    assert abs(sizes[0] - sizes[1]) < 2000
    for name, tensor in build.checkpoint(folder / "final.pt")[0].state_dict().items():
        assert torch.equal(tensor, expand(rounded(after[name]))), name


@pytest.mark.parametrize("name, classes", [("pairs", 3), ("other", 2)])
def test_the_head_that_a_task_asks_for_must_be_there(name, classes):
    model = model_of("roberta")
    model.register_classification_head("pairs", num_classes=2)
    values = trainable(model, code(dict(model.state_dict(keep_vars=True))))
    before = values.classification_heads["pairs"]
    values.register_classification_head("pairs", num_classes=2)
    assert values.classification_heads["pairs"] is before
    with pytest.raises(ValueError, match=f"no classification head '{name}' of {classes} classes"):
        values.register_classification_head(name, num_classes=classes)
