"""`pruned`: any fairseq model without some of its attention heads (Michel et al. 2019, section 4).

A checkpoint of such a model has the configuration of the model it was made from, under the same
flat names, and three entries more: `pruned_heads` (what is gone, as "E:1:3 A:6:1,2"),
`original_arch` (what to build before they go) and the name of this architecture. Stock commands
with `--user-dir` alone rebuild it, and what they get is an instance of the original's class.
"""

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from fairseq.models import (
    BaseFairseqModel,
    build_model,
    register_model,
    register_model_architecture,
)
from hydra.core.config_store import ConfigStore
from torch import nn

from .. import checkpoint_files
from ..compression import is_packed
from ..heads.names import Head, format_heads, parse_heads
from ..heads.removal import remove_heads_, shrink_tensors
from ..tasks.masks_left import masks_left
from .settings import drop_optimizer_, entries_of, model_config, writable

ARCH = "pruned"
DROPOUTS = {
    "dropout": "probability of dropping a channel between the parts of a layer",
    "attention_dropout": "probability of dropping an attention weight",
    "activation_dropout": "probability of dropping a channel inside the FFN",
}


@register_model(ARCH)
class PrunedModel(BaseFairseqModel):
    """Builds a model without the heads that its configuration names; is never built itself."""

    @classmethod
    def add_args(cls, parser) -> None:
        """Add the flags of ``fairseq-train --arch pruned``."""
        parser.add_argument(
            "--pruned-from",
            metavar="CKPT",
            help="checkpoint of a pruned model: its sizes and settings are taken, its weights only "
            "with --finetune-from-model CKPT",
        )
        for name, help_text in DROPOUTS.items():
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(
                flag, type=float, metavar="P", help=f"{help_text} (default: that of --pruned-from)"
            )

    @classmethod
    def build_model(cls, cfg, task) -> BaseFairseqModel:
        """The model that ``cfg`` describes: an instance of the class it had before.

        Raises:
            ValueError: if the original has not the heads that are to go.
        """
        original = copy.deepcopy(cfg)
        with writable(original):
            entries = entries_of(original)
            heads = parse_heads(entries.pop("pruned_heads"))
            name = entries.pop("original_arch")
            for key in ("_name", "arch"):
                if key in entries:
                    entries[key] = name
        model = build_model(original, task, from_checkpoint=True)
        remove_heads_(model, heads)
        return model


@register_model_architecture(ARCH, ARCH)
def take_settings(args) -> None:
    """Fill in what the command line leaves open from the checkpoint that ``--pruned-from`` names.

    fairseq saves the result with every checkpoint, so these need the file no more.

    Raises:
        OSError: if the file must not be read.
        ValueError: if there is none, or its model is not pruned.
    """
    with writable(args):
        entries = entries_of(args)
        if entries.get("pruned_heads") is not None:  # a checkpoint's own configuration
            return
        path = _settings_from(entries)
        settings = entries_of(model_config(checkpoint_files.read(path)))
        if settings.get("pruned_heads") is None:
            raise ValueError(
                f"--pruned-from {path}: this model has all its heads, fine-tune it with its own "
                f"--arch {settings.get('_name') or settings.get('arch')}"
            )
        for name, value in settings.items():
            if name not in entries and not name.startswith("_"):
                entries[name] = copy.deepcopy(value)


def _settings_from(entries: MutableMapping[str, Any]) -> str:
    """The file named, or when it is gone the checkpoint from which fairseq-train goes on."""
    path = entries.pop("pruned_from", None)
    last = Path(entries.get("save_dir") or ".", entries.get("restore_file") or "checkpoint_last.pt")
    if last.is_file() and not (path and Path(path).is_file()):
        return str(last)
    if not path:
        raise ValueError(f"--arch {ARCH} needs --pruned-from CKPT, a checkpoint without heads")
    return path


# for fairseq-hydra-train, which asks the architecture when it builds the model
ConfigStore.instance().store(
    name=ARCH, group="model", node=dict(_name=ARCH, pruned_from=None), provider="lite"
)


# --- checkpoints ----------------------------------------------------------------------------------


def prune_checkpoint(
    state: Mapping[str, Any], heads: Iterable[Head], model: nn.Module
) -> dict[str, Any]:
    """A checkpoint, as `checkpoint_files.read` gives it, without some heads of its model.

    The optimizer's state goes, since it belongs to the old weights, and so does what a mask of the
    training says about these heads; everything else stays, precision and shared tensors included.

    Args:
        state: is not changed.
        model: what the checkpoint holds, as `build.checkpoint` makes it; is not changed either.

    Raises:
        ValueError: if no head is named, or one that the model has not, or the weights are packed.
    """
    heads = set(heads)
    if not heads:
        raise ValueError("no heads to remove: name at least one, as E:1:3")
    check_not_packed(state)
    pruned = {**state, "model": shrink_tensors(state["model"], heads, model)}
    extra = dict(state.get("extra_state") or {})
    for name in ("ema", "ema_fp32_params"):  # --store-ema
        if name in extra:
            extra[name] = shrink_tensors(extra[name], heads, model)
            pruned["extra_state"] = extra
    for name in ("args", "cfg"):  # the one in older checkpoints, the other in newer ones
        if pruned.get(name) is not None:
            pruned[name] = copy.deepcopy(pruned[name])
            _describe_(pruned["args"] if name == "args" else pruned["cfg"]["model"], heads)
    task = (pruned.get("cfg") or {}).get("task") or {}
    with writable(task):
        entries_of(task).update(masks_left(entries_of(task), heads, model))
    drop_optimizer_(pruned)
    return pruned


def check_not_packed(state: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: if a checkpoint's weights are codes and positions, of which no head can go.
    """
    if is_packed(state["model"]):
        raise ValueError(
            "heads cannot be removed from a compressed checkpoint: remove them from the one it was "
            "made of, and compress the result"
        )


def _describe_(cfg: Any, heads: set[Head]) -> None:
    """Say in a model's configuration that it lacks these heads, beside those it has lost before."""
    with writable(cfg):
        entries = entries_of(cfg)
        gone = parse_heads(entries.get("pruned_heads") or "")
        entries["pruned_heads"] = format_heads([*gone, *heads])
        if "original_arch" not in entries:
            entries["original_arch"] = entries.get("_name") or entries["arch"]
        for key in ("_name", "arch"):
            if key in entries:
                entries[key] = ARCH
