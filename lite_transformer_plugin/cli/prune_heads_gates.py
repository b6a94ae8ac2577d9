"""What `fairseq-prune-heads` does with checkpoints of training under gates: --gates-from."""

import argparse
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, open_dict
from torch import nn

from .. import build
from ..heads.closed import closed_heads
from ..heads.names import Head, attentions

SAVED = "pruned-gates.pt"
ORDER = "gates"  # what stands for --order in the results
LEARNED = ("head_l0", "head_l0_init", "head_l0_speed")  # flags of the criterion
# What else would choose heads, and what the flag is when it is not given.
CHOOSERS = {
    "save_ratio": [],
    "order": "importance",
    "reestimate": False,
    "min_heads_per_layer": 0,
    "only_importance": False,
    "checkpoints": None,
}


def check_together(args: argparse.Namespace, everything: Mapping[str, Any]) -> None:
    """See that nothing else chooses heads; then let the results say that gates do.

    Args:
        everything: what --parts and --ratios are when they are not given.

    Raises:
        ValueError: naming the flag that does.
    """
    if not Path(args.gates_from).is_file():
        raise ValueError(f"--gates-from {args.gates_from}: there is no such checkpoint")
    for name, default in {**CHOOSERS, **everything}.items():
        if getattr(args, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--gates-from says which heads go: it does not go with {flag}")
    args.order = ORDER


def closed_by(path: str, model: nn.Module) -> list[Head]:
    """The heads that are closed in a checkpoint of training, by learned gates or on a schedule.

    Args:
        model: whose heads they shall be.

    Raises:
        OSError, ValueError: if it is no checkpoint, has no gates or those of another model, or if
            all of them are open.
    """
    gated, state = build.checkpoint(path)
    ours, theirs = _shapes(model), _shapes(gated)
    for place in sorted(ours.keys() | theirs.keys()):
        if ours.get(place) != theirs.get(place):
            part, layer = place
            raise ValueError(f"--gates-from {path}: gates of another model: see {part}:{layer}")
    closed = closed_heads(gated)
    if not closed and any(key.startswith("gates.") for key in state.get("criterion") or ()):
        raise ValueError(f"--gates-from {path}: all its gates are open, there is nothing to remove")
    if not closed:
        raise ValueError(
            f"--gates-from {path} holds no gates: train it with --criterion head_mask --head-l0, "
            "or with --task prune_heads --prune-end"
        )
    return closed


def _shapes(model: nn.Module) -> dict[tuple[str, int], tuple]:
    found = [a for a in attentions(model) if a.heads]
    return {a.place: (a.heads, a.module.out_proj.weight.shape) for a in found}


def without_gates(state: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint from which training goes on with all heads that are left."""
    cfg = copy.deepcopy(state.get("cfg"))
    for name in LEARNED if cfg else ():
        cfg["criterion"].pop(name, None)
    return {**state, "cfg": cfg, "criterion": None}


def build_loss(task: FairseqTask, cfg: DictConfig) -> FairseqCriterion:
    """The criterion of a training; of head_mask, which needs its task, the loss alone."""
    if cfg._name != "head_mask":
        return task.build_criterion(cfg)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        cfg._name = "label_smoothed_cross_entropy"
    return task.build_criterion(cfg, from_checkpoint=True)
