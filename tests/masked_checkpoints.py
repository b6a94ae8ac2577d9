"""For tests of `--task prune_heads`: checkpoints whose heads matter, masked by their weights."""

import json
import re
from argparse import Namespace
from functools import cache
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.tasks.translation import TranslationTask
from stock import LAST, NO_VALIDATION, PLUGIN, call, make_data, train
from test_commands import MODEL, TRAIN
from torch import Tensor

from lite_transformer_plugin.heads import Head, parse_heads

ARCHS = ("lite_transformer", "transformer")
HEADS = "E:1:3 A:2:1,2 D:1:4"
SIZES = [*MODEL[2:], *(f"--{side}-attention-heads=4" for side in ("encoder", "decoder"))]
MODULES = {
    "E": "encoder.layers.{}.self_attn",
    "A": "decoder.layers.{}.encoder_attn",
    "D": "decoder.layers.{}.self_attn",
}
ALL = [Head(part, layer, head) for part in "EAD" for layer in (1, 2) for head in (1, 2, 3, 4)]
WORKERS = ["--num-workers", "0"]
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, 1, 1]])
TARGET = torch.tensor([[2, 9, 8, 7], [2, 6, 5, 5]])

# --- checkpoints ----------------------------------------------------------------------------------


def train_arch(data: Path, save_dir: Path, arch: str, *words) -> None:
    how = ["--arch", arch, *SIZES, *TRAIN[len(MODEL) :], *WORKERS]
    train(data, save_dir, *words, how=how)


@cache
def make_work(session: Path) -> Path:
    """data/, and a checkpoint of each architecture whose heads matter; not to be changed.

    Made once, in the temporary folder of all tests.
    """
    folder = session / "task"
    folder.mkdir()
    make_data(folder)
    for arch in ARCHS:
        train_arch(folder / "data", folder / arch, arch, "--max-update", 3, NO_VALIDATION)
        path = folder / arch / LAST
        change(path, dict.fromkeys(ALL, 4.0)).rename(path)
    return folder


@cache
def train_masked(session: Path, arch: str) -> Path:
    """A folder with checkpoint_1_1.pt and checkpoint_1_2.pt, after updates under a mask."""
    folder = session / f"masked-{arch}"
    words = ["--save-interval-updates", 1, "--max-update", 2, NO_VALIDATION]
    data = make_work(session) / "data"
    train_arch(data, folder, arch, *told("--mask-heads", HEADS), *words)
    return folder


@cache
def make_legacy(session: Path) -> Path:
    """A checkpoint as fairseq wrote them before 2021, with a flat namespace."""
    work = make_work(session)
    state = torch.load(work / "transformer" / LAST)
    cfg, flat = state.pop("cfg"), {}
    for group in filter(None, cfg.values()):
        flat |= vars(group) if isinstance(group, Namespace) else group
    names = {name: cfg[name]["_name"] for name in ("task", "criterion", "optimizer")}
    state["args"] = Namespace(**flat | names | {"arch": "transformer"})
    torch.save(state, work / "legacy.pt")
    return work / "legacy.pt"


def out_proj(weights: dict, head: Head) -> Tensor:
    """The columns of the output projection that read this head."""
    name = MODULES[head.part].format(head.layer - 1)
    [weight] = [weights[n] for n in weights if re.fullmatch(rf"{name}.*out_proj\.weight", n)]
    return weight.chunk(4, dim=1)[head.head - 1]


def change(path: Path, factors: dict[Head, float]) -> Path:
    """A copy of a checkpoint in which outputs of heads are scaled by their weights."""
    state = torch.load(path)
    for head, factor in factors.items():
        out_proj(state["model"], head).mul_(factor)
    copy = path.with_name(f"{path.stem}-{len(list(path.parent.iterdir()))}.pt")
    torch.save(state, copy)
    return copy


@cache
def without(path: Path, heads: str) -> Path:
    return change(path, dict.fromkeys(parse_heads(heads), 0.0))


def write_importance(folder: Path, scores: dict[Head, float], **around) -> str:
    rows = [{"head": str(head), "importance": score} for head, score in scores.items()]
    path = folder / "importance.json"
    path.write_text(json.dumps(around | {"importance": rows} if around else rows))
    return str(path)


# --- what commands see ----------------------------------------------------------------------------


def told(*words: str) -> list[str]:
    return ["--task", "prune_heads", *words]


def validate(data: Path, checkpoint: Path, *words) -> list[float]:
    """Losses of the batches in fairseq-validate, which must read these data."""
    losses, folders, stock = [], set(), TranslationTask.valid_step

    def valid_step(task, sample, model, criterion):
        folders.add(task.cfg.data)
        loss, size, logged = stock(task, sample, model, criterion)
        losses.append(float(loss))
        return loss, size, logged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "valid_step", valid_step)
        words = ["--path", checkpoint, "--batch-size", 4, "--cpu", *WORKERS, *words]
        call("validate", data, "--user-dir", PLUGIN, *words)
    assert folders == {str(data)} and len(losses) == 3
    return losses


def output_of(data: Path, checkpoint: Path, **flags) -> Tensor:
    """Logits of a checkpoint, loaded as the commands do that build the task from these flags."""
    task = tasks.setup_task(Namespace(task="prune_heads", data=str(data), **flags))
    [model], _ = checkpoint_utils.load_model_ensemble([str(checkpoint)], task=task)
    return logits(model)


def load_as_validated(checkpoint: Path, **overrides) -> torch.nn.Module:
    """As fairseq-validate does, with what its command line says."""
    return checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)[0][0]


def logits(model: torch.nn.Module) -> Tensor:
    model.eval()
    return model(SOURCE, torch.tensor([5, 3]), TARGET)[0]


def refused(message: str):
    """An error of one line."""
    return pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\Z")
