"""The language model through fairseq's commands: trained, scored, continued, loaded again."""

import json
import logging
import math
import re
from pathlib import Path

import pytest
import stock
import torch
from test_commands import PLUGIN, run

from lite_transformer_plugin import build, checkpoint_files

TASK = ["--task", "language_modeling", "--user-dir", PLUGIN]
MODEL = "--arch lite_transformer_lm --decoder-embed-dim 16 --decoder-layers 2".split()
MODEL += "--decoder-kernel-size-list 3,5 --dropout 0".split()
ADAPTIVE = (
    "--adaptive-input --adaptive-input-cutoff 10,20 --adaptive-softmax-cutoff 10,20 "
    "--tie-adaptive-weights --tie-adaptive-proj --criterion adaptive_loss"
).split()
HOW = "--optimizer nag --lr 0.5 --clip-norm 0.1 --tokens-per-sample 24 --batch-size 8 --cpu".split()
HOW += "--ddp-backend legacy_ddp --no-epoch-checkpoints --log-format simple --num-workers 0".split()
BREAKS = ("none", "complete", "complete_doc", "eos")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Text, data/ and, after six updates, saved/ of the model with an adaptive softmax."""
    folder = tmp_path_factory.mktemp("lm")
    generator = torch.Generator().manual_seed(1)
    for name, count in (("train", 40), ("valid", 9), ("test", 7)):
        lines = (torch.randint(30, (int(n),), generator=generator) for n in range(3, 3 + count))
        text = "\n".join(" ".join(f"w{int(w)}" for w in line[:15]) for line in lines)
        (folder / name).write_text(text.replace("\n", "\n\n", 2) + "\n")  # blank: a new document
    prefixes = [f"--{name}pref={folder / name}" for name in ("train", "valid", "test")]
    stock.call("preprocess", "--only-source", "--destdir", folder / "data", *prefixes)
    train(folder, "saved", *ADAPTIVE, "--max-update", 6)
    return folder


def train(folder: Path, name: str, *words) -> Path:
    stock.call("train", folder / "data", *TASK, *MODEL, *HOW, "--save-dir", folder / name, *words)
    return folder / name / stock.LAST


def evaluate(work: Path, caplog, *words, name: str = "saved") -> tuple[int, float]:
    """Tokens and perplexity that fairseq-eval-lm reports."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    checkpoint = work / name / stock.LAST
    flags = ["--user-dir", PLUGIN, "--path", checkpoint, "--gen-subset", "test", "--cpu"]
    stock.call("eval_lm", work / "data", *flags, "--num-workers", 0, *words)
    tokens = re.search(r"Evaluated ([\d,]+) tokens", caplog.text)[1]
    return int(tokens.replace(",", "")), float(re.search(r"Perplexity: ([\d.]+)", caplog.text)[1])


def validate(work: Path, checkpoint: Path, caplog) -> dict:
    """What fairseq-validate measures on the test split."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    flags = [*TASK, "--path", checkpoint, "--valid-subset", "test", "--batch-size", 4, "--cpu"]
    stock.call("validate", work / "data", *flags, "--log-format", "json", "--num-workers", 0)
    return json.loads(re.search(r"\{.*test_loss.*\}", caplog.text)[0])


def tokens_of(path: Path) -> int:
    return sum(len(line.split()) + 1 for line in path.read_text().splitlines())


@pytest.mark.parametrize("mode", BREAKS)
def test_every_token_is_scored_whatever_a_sample_is(work, caplog, mode):
    found = evaluate(work, caplog, "--sample-break-mode", mode, "--tokens-per-sample", 24)
    # documents are cut at blank lines, which then are no sentences
    blank = 2 if mode == "complete_doc" else 0
    assert found[0] == tokens_of(work / "test") - blank
    assert 1 < found[1] < 100


def test_a_context_window_gives_what_the_model_says_by_hand(work, caplog):
    """With 23 of 24 tokens as context, every token is predicted from the 23 before it."""
    flags = ["--sample-break-mode", "none", "--tokens-per-sample", 24, "--context-window", 23]
    count, perplexity = evaluate(work, caplog, *flags)
    model, _ = build.checkpoint(work / "saved" / stock.LAST)
    model.eval()
    entries = (work / "data/dict.txt").read_text().split("\n")
    index = {line.split()[0]: i for i, line in enumerate(entries, start=4) if line}
    text = [
        i
        for line in (work / "test").read_text().splitlines()
        for i in [*(index[word] for word in line.split()), 2]
    ]
    total = 0.0
    for i, word in enumerate(text):
        before = torch.tensor([([2] + text)[max(0, i - 23) : i + 1]])
        with torch.no_grad():
            scores = model.get_normalized_probs(model(before), log_probs=True)
        total -= scores[0, -1, word].item() / math.log(2)
    assert count >= len(text)
    assert perplexity == pytest.approx(2 ** (total / len(text)), abs=0.02)


def test_training_goes_on_and_loads_strictly(work):
    train(work, "resumed", *ADAPTIVE, "--max-update", 2)  # of the three updates of an epoch
    resumed = checkpoint_files.read(train(work, "resumed", *ADAPTIVE, "--max-update", 6))["model"]
    straight = checkpoint_files.read(work / "saved" / stock.LAST)["model"]
    assert resumed.keys() == straight.keys()
    for name, tensor in straight.items():
        if not name.endswith("_float_tensor"):  # never set: only its type is read
            torch.testing.assert_close(resumed[name], tensor)
    build.checkpoint(work / "resumed" / stock.LAST)


def test_a_text_is_continued(work, capsys, monkeypatch):
    flags = [*TASK, "--path", work / "saved" / stock.LAST, "--cpu", "--beam", 1, "--sampling"]
    flags += ["--max-len-b", 12, "--seed", 3]
    stock.call("generate", work / "data", *flags, "--batch-size", 4, "--sample-break-mode", "eos")
    written = capsys.readouterr().out
    assert (
        len(re.findall(r"^H-\d+", written, re.M))
        == len((work / "test").read_text().split("\n")) - 1
    )
    (work / "start").write_text("w1 w2 w3\n")
    stock.call("interactive", work / "data", *flags, "--input", work / "start")
    said = re.search(r"^H-0\t\S+\t(.*)$", capsys.readouterr().out, re.M)[1]
    assert said.startswith("w1 w2 w3")


def test_plain_embeddings_learn_by_cross_entropy(work, caplog):
    plain = ["--share-decoder-input-output-embed", "--criterion", "cross_entropy"]
    losses = [
        float(validate(work, train(work, "plain", *plain, "--max-update", n), caplog)["test_loss"])
        for n in (1, 12)
    ]
    assert losses[1] < losses[0]
    _, perplexity = evaluate(work, caplog, "--tokens-per-sample", 24, name="plain")
    assert 2 ** losses[1] == pytest.approx(perplexity, abs=0.03)  # three digits are printed


def test_cutoffs_beyond_the_dictionary_are_told_before_training(work):
    with pytest.raises(ValueError, match="goes beyond the 40 entries of the dictionary") as error:
        train(work, "none", "--adaptive-softmax-cutoff", "10,2000", "--criterion", "adaptive_loss")
    assert "\n" not in str(error.value)
    assert not (work / "none" / stock.LAST).exists()


def test_hydra_train_builds_the_same_model(work):
    run(
        "fairseq-hydra-train",
        "hydra.searchpath=[pkg://lite_transformer_plugin]",
        f"hydra.run.dir={work / 'hydra'}",
        f"common.user_dir={PLUGIN}",
        "common.cpu=true",
        "task=language_modeling",
        f"task.data={work / 'data'}",
        "task.tokens_per_sample=24",
        "model=lite_transformer_lm",
        "model.decoder_embed_dim=16",
        "model.decoder_layers=2",
        "model.decoder_kernel_size_list=[3,5]",
        "model.adaptive_softmax_cutoff='10,20'",
        "criterion=adaptive_loss",
        "distributed_training.ddp_backend=legacy_ddp",
        "distributed_training.distributed_world_size=1",
        "lr_scheduler=fixed",
        "optimizer=nag",
        "optimization.lr=[0.5]",
        "optimization.max_update=1",
        "dataset.batch_size=8",
        "dataset.num_workers=0",
        f"checkpoint.save_dir={work / 'hydra'}",
        cwd=work,
    )
    model, state = build.checkpoint(work / "hydra" / stock.LAST)
    assert state["cfg"]["model"]["_name"] == "lite_transformer_lm"
    assert model.max_positions() == 24
    assert model.decoder.adaptive_softmax.cutoff == [10, 20, 40]
