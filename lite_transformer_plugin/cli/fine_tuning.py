"""The stock command line that trains a smaller model on, as its original was trained."""

import argparse
import shlex
from argparse import Action, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.dataclass.configs import (
    CheckpointConfig,
    CommonConfig,
    DatasetConfig,
    DistributedTrainingConfig,
    OptimizationConfig,
)
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from ..models import compressed

# What of fairseq's general flags changes the result and is no matter of machine or folder.
GENERAL = {
    "common": (CommonConfig, ("fp16", "memory_efficient_fp16", "fp16_no_flatten_grads")),
    "dataset": (DatasetConfig, ("max_tokens", "batch_size")),
    # adaptive_loss refuses the default
    "distributed_training": (DistributedTrainingConfig, ("ddp_backend",)),
    "checkpoint": (
        CheckpointConfig,
        ("best_checkpoint_metric", "maximize_best_checkpoint_metric"),
    ),
    "optimization": (
        OptimizationConfig,
        (
            "max_epoch",
            "max_update",
            "clip_norm",
            "sentence_avg",
            "update_freq",
            "lr",
            "stop_min_lr",
        ),
    ),
}


def fine_tuning_command(path: str | Path, data: str = "DATA") -> str:
    """The line, ready for a shell, that trains a pruned or compressed model on from its weights.

    Task, criterion, optimizer, learning rate, schedule and batches are those of the checkpoint;
    flags added at the end of the line override them.

    Args:
        data: the folder of binarised data; left to the reader to fill in.

    Raises:
        OSError: if the file must not be read.
    """
    cfg = checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"]
    words = ["fairseq-train", data, "--user-dir", "lite_transformer_plugin"]
    words += _model(cfg.model, str(path))
    words += ["--save-dir", f"{Path(path).stem}-fine-tuned"]
    for name in ("task", "criterion", "optimizer", "lr_scheduler"):
        words += _component(name, cfg[name])
    for name, (kind, kept) in GENERAL.items():
        actions = [action for action in _actions(kind) if action.dest in kept]
        words += _flags(actions, cfg[name])
    return shlex.join(words)


def _model(cfg: Any, path: str) -> list[str]:
    if cfg._name == compressed.ARCH:  # its architecture takes the weights, too
        return ["--arch", compressed.ARCH, "--compressed-from", path]
    return ["--arch", "pruned", "--pruned-from", path, "--finetune-from-model", path]


def _component(name: str, cfg: Any) -> list[str]:
    """``--task NAME`` and the like, and what was set of its own flags."""
    registry = TASK_REGISTRY if name == "task" else REGISTRIES[name]["registry"]
    flag = f"--{name.replace('_', '-')}"
    chosen = cfg._name if hasattr(cfg, "_name") else cfg
    return [flag, chosen, *_flags(_actions(registry[chosen]), cfg)]


def _actions(kind: type) -> list[Action]:
    """The flags that a dataclass or something registered adds to fairseq-train's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    if hasattr(kind, "add_args"):
        kind.add_args(parser)
    else:
        gen_parser_from_dataclass(parser, getattr(kind, "__dataclass", kind)())
    return [action for action in parser._actions if action.option_strings]


def _flags(actions: list[Action], cfg: DictConfig | Namespace) -> Iterator[str]:
    """What a configuration sets otherwise than it is by default, as words of a command line."""
    for action in actions:
        value = getattr(cfg, action.dest, None)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value)
        if value is None or isinstance(value, dict) or value == _default(action):
            continue
        yield action.option_strings[0]
        if action.nargs != 0:  # a switch has no value
            yield from _words(action, value)


def _default(action: Action) -> Any:
    default = action.default
    if isinstance(default, str) and action.type is not None:
        default = action.type(default)
    return list(default) if isinstance(default, tuple) else default


def _words(action: Action, value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)):
        return [str(value)]
    if action.nargs in ("+", "*") or isinstance(action.nargs, int):
        return [str(item) for item in value]
    return [str(value) if action.type is str else ",".join(map(str, value))]
