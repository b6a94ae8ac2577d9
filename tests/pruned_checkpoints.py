"""Checkpoints of every kind, whole and pruned, for the tests of what is done with them."""

import re
from argparse import Namespace
from functools import cache
from pathlib import Path

import torch
from conftest import randomise
from head_models import size
from stock import LAST, NO_VALIDATION, generate, make_data, train
from test_commands import TRAIN
from test_head_removal import old_names
from torch import Tensor, nn

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.heads import parse_heads
from lite_transformer_plugin.models.pruned import prune_checkpoint

HEADS = "E:1:1 E:2:1-4 A:1:2,3 A:2:1-4 D:1:1-3"  # two layers lose all theirs
MODELS = {
    "lite_transformer": ("lite_transformer", size(2, 4)),
    "transformer": ("transformer", size(2, 4)),
    "bart": ("bart_base", size(2, 4)),
}
FORMATS = [*MODELS, "legacy"]  # the last one as fairseq wrote a transformer in 2018
MASKS = ["--task", "prune_heads", "--mask-heads", HEADS]
OPTIMIZER = ["--adam-betas", "(0.9, 0.98)", "--lr-scheduler", "inverse_sqrt", "--warmup-updates=9"]
QUICK = [NO_VALIDATION, "--num-workers=0"]


@cache
def data_of(session: Path) -> Path:
    """Made once, in the temporary folder of all tests, as what follows."""
    (session / "pruned").mkdir()
    return make_data(session / "pruned")


@cache
def train_every(session: Path) -> dict[str, Path]:
    """A checkpoint of every kind, with random weights, so that translations differ."""
    data, paths = data_of(session), {}
    for kind, (arch, flags) in MODELS.items():
        sizes = [f"--{side}-{n}={v}" for side in ("encoder", "decoder") for n, v in flags.items()]
        how = ["--arch", arch, "--share-all-embeddings", *sizes, *TRAIN[9:], *OPTIMIZER]
        train(data, data / kind, "--max-update", 1, *QUICK, how=how)
        paths[kind] = data / f"{kind}.pt"
        model, state = randomised(data / kind / LAST)
        torch.save(state | {"model": model.state_dict()}, paths[kind])
    paths["legacy"] = data / "legacy.pt"
    torch.save(as_legacy(torch.load(paths["transformer"])), paths["legacy"])
    return paths


def randomised(path: Path) -> tuple[nn.Module, dict]:
    """A model in which attention has a say, and its checkpoint with the weights it had."""
    model = randomise(build.checkpoint(path)[0])
    for name, parameter in model.named_parameters():
        if name.endswith("out_proj.weight"):
            parameter.data *= 5
    return model, checkpoint_files.read(path)


def as_legacy(state: dict) -> dict:
    """One flat Namespace instead of a configuration, and tensors under their old names."""
    args = Namespace(**vars(state.pop("cfg")["model"]))
    del args._name
    return state | {"args": args, "model": old_names(state["model"])}


def prune(path: Path, heads: str = HEADS, name: str | None = None) -> Path:
    model, _ = build.checkpoint(path)
    state = prune_checkpoint(checkpoint_files.read(path), parse_heads(heads), model)
    pruned = path.with_name(name or f"pruned-{path.name}")
    torch.save(state, pruned)
    return pruned


@cache
def prune_every(session: Path) -> dict[str, Path]:
    return {kind: prune(path) for kind, path in train_every(session).items()}


def entries(cfg) -> dict:
    return vars(cfg) if isinstance(cfg, Namespace) else dict(cfg)


def hypotheses(capsys, data: Path, path: Path, *words) -> tuple[list[str], Tensor]:
    """What fairseq-generate prints: every hypothesis, and the scores of its words."""
    capsys.readouterr()
    generate(data, path, "--num-workers", 0, *words)
    out = capsys.readouterr().out
    texts = re.findall(r"^(H-\d+)\t\S+\t(.*)", out, re.MULTILINE)
    scores = re.findall(r"^P-\d+\t(.*)", out, re.MULTILINE)
    return texts, torch.tensor([float(score) for line in scores for score in line.split()])
