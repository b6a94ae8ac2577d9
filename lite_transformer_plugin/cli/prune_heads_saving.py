"""Checkpoints that `fairseq-prune-heads` writes without heads: --save-ratio, --gates-from."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .. import build, checkpoint_files, report
from ..cost import count, stored_bytes
from ..heads.curve import Point
from ..heads.names import Head, format_heads, list_heads
from ..models.pruned import prune_checkpoint
from . import processes, prune_heads_gates
from .fine_tuning import fine_tuning_command
from .prune_heads_arguments import NAME
from .prune_heads_study import Output, Study


def saved_name(share: float) -> str:
    return f"pruned-{100 * share:g}.pt"


def save(study: Study, output: Output, points: Sequence[Point]) -> None:
    """Checkpoints without heads, as asked for, and the line that trains each on."""
    gates = study.args.gates_from
    for point in points:
        wanted = point.removed if gates else point.share in study.args.save_ratio
        if not wanted or processes.rank():
            continue
        name = prune_heads_gates.SAVED if gates else saved_name(point.share)
        path = study.folder.path(name)
        model, _ = build.checkpoint(study.path)
        state = checkpoint_files.read(study.path)
        pruned = prune_checkpoint(state, point.removed, model)
        if gates:
            pruned = prune_heads_gates.without_gates(pruned)
        report.write_atomically(path, lambda file, p=pruned: torch.save(p, file), force=True)
        study.folder.remember("saved", path.name, format_heads(point.removed))
        output.say(f"{path}: {before_and_after(model, state, *build.checkpoint(path))}")
        _warn_if_deaf(study, point.removed)
        output.say(f"train it on: {fine_tuning_command(path, study.cfg.task.data)}")


def before_and_after(
    before: nn.Module, state: Mapping[str, Any], after: nn.Module, smaller: Mapping[str, Any]
) -> str:
    """What removal saved: heads, parameters, attention's share of them, Mult-Adds, bytes."""

    def figures(model: nn.Module, state: Mapping[str, Any]) -> list[str]:
        cost = count(model)
        by_part = cost.parameters_by("part")
        attention = by_part["attention"] + by_part["cross-attention"]
        return [
            f"{len(list_heads(model))}",
            report.human(cost.parameters),
            f"{100 * attention / cost.parameters:.1f} %",
            report.human(cost.mult_adds),
            report.human_bytes(stored_bytes(state["model"])),
        ]

    names = ("heads", "parameters", "attention's share", "Mult-Adds", "stored")
    pairs = zip(names, figures(before, state), figures(after, smaller), strict=True)
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs)


def _warn_if_deaf(study: Study, removed: Sequence[Head]) -> None:
    reading = set(list_heads(study.model, ["A"]))
    if reading and reading <= set(removed):
        print(
            f"{NAME}: warning: no head of encoder-decoder attention is left: nothing reads the "
            "source",
            file=sys.stderr,
        )
