"""`compressed`: any fairseq model whose checkpoint expands itself on load.

Such a checkpoint has the configuration of the model it was made from, under the same flat names,
and one entry more, `compressed_arch` (what to build); its model is a single tensor of bytes. Stock
commands with `--user-dir` alone load it, and what they get is an instance of the original's class.

``fairseq-train --arch compressed --compressed-from CKPT`` trains the centroids and whatever else is
stored as it is. The checkpoints it writes are of the same kind, with the same codes.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    BaseFairseqModel,
    build_model,
    register_model,
    register_model_architecture,
)
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import checkpoint_files
from ..compression import KEY, Coded, expand_all, is_packed, pack, unpack
from ..compression.trainable import coded_state, make_trainable_, same_codes, state_of
from .pruned import DROPOUTS
from .settings import drop_optimizer_, entries_of, model_config, writable

ARCH = "compressed"
QUICK = 3  # zstandard's effort for checkpoints in the course of training
logger = logging.getLogger(__name__)


@register_model(ARCH)
class CompressedModel(BaseFairseqModel):
    """Builds the model that its configuration names; is never built itself."""

    @classmethod
    def add_args(cls, parser) -> None:
        """Add the flags of ``fairseq-train --arch compressed``."""
        parser.add_argument(
            "--compressed-from",
            metavar="CKPT",
            help="compressed checkpoint: its model, with all weights, is trained on",
        )
        for name, help_text in DROPOUTS.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=float,
                metavar="P",
                help=f"{help_text} (default: that of --compressed-from)",
            )

    @classmethod
    def build_model(cls, cfg, task) -> BaseFairseqModel:
        """The model that ``cfg`` describes: an instance of a subclass of the class it had before.

        It is trainable if ``cfg`` says where its codes are, which is said no longer afterwards:
        the checkpoints of the training need no other file.

        Raises:
            ValueError: if the original's architecture is not known here.
        """
        with writable(cfg):
            path = entries_of(cfg).pop("compressed_from", None)
        original = copy.deepcopy(cfg)
        with writable(original):
            entries = entries_of(original)
            name = entries.pop("compressed_arch")
            for key in ("_name", "arch"):
                if key in entries:
                    entries[key] = name
        if name not in ARCH_MODEL_REGISTRY and name not in MODEL_REGISTRY:
            raise ValueError(
                f"the compressed model is a {name!r}, an architecture that is not known here: "
                "is its plugin given by --user-dir?"
            )
        coded = read_packed(path) if path else {}
        if any(key.startswith("classification_heads.") for key in coded):
            with writable(original):  # the task would register them, but later
                entries_of(original)["load_checkpoint_heads"] = True
        model = build_model(original, task, from_checkpoint=True)
        if path:
            return trainable(model, coded)
        model.__class__ = _with(ExpandsOnLoad, type(model))
        return model


@register_model_architecture(ARCH, ARCH)
def take_settings(args) -> None:
    """Fill in what the command line leaves open from the checkpoint of ``--compressed-from``.

    Raises:
        OSError: if the file must not be read.
        ValueError: if there is none, or its model is not compressed.
    """
    with writable(args):
        entries = entries_of(args)
        if entries.get("compressed_arch") is not None:  # a checkpoint's own configuration
            return
        path = _settings_from(entries)
        state = checkpoint_files.read(path)
        if not is_packed(state["model"]):
            raise ValueError(
                f"--compressed-from {path}: this model is not compressed: make one with "
                "fairseq-compress"
            )
        settings = entries_of(model_config(state))
        for name, value in settings.items():
            if name not in entries and not name.startswith("_"):
                entries[name] = copy.deepcopy(value)
        entries["compressed_from"] = path


def _settings_from(entries: MutableMapping[str, Any]) -> str:
    """The file named, or when it is gone the checkpoint from which fairseq-train goes on."""
    path = entries.pop("compressed_from", None)
    last = Path(entries.get("save_dir") or ".", entries.get("restore_file") or "checkpoint_last.pt")
    if last.is_file() and not (path and Path(path).is_file()):
        return str(last)
    if not path:
        raise ValueError(f"--arch {ARCH} needs --compressed-from CKPT, a compressed checkpoint")
    return path


# for fairseq-hydra-train, which asks the architecture when it builds the model
ConfigStore.instance().store(
    name=ARCH, group="model", node=dict(_name=ARCH, compressed_from=None), provider="lite"
)


# --- loading --------------------------------------------------------------------------------------


class ExpandsOnLoad:
    """Mixed into a model's class: loads its weights from a compressed checkpoint."""

    def load_state_dict(self, state_dict, strict=True, *args, **kwargs):
        """
        Raises:
            ValueError: if a tensor is damaged, naming it; logged, too, because fairseq-train
                tells the user something else.
        """
        with _told():
            full = expand_all(state_dict)
        return super().load_state_dict(full, strict, *args, **kwargs)


class TrainsValues:
    """Mixed into a model's class: its state is that of a compressed checkpoint."""

    def forward(self, *args, **kwargs):
        with parametrize.cached():  # embeddings serve several modules
            return super().forward(*args, **kwargs)

    def register_classification_head(self, name: str, num_classes: int, *args, **kwargs) -> None:
        """The head that a task asks for is here already.

        Raises:
            ValueError: if it is not.
        """
        found = {n: head.out_proj.out_features for n, head in self.classification_heads.items()}
        if found.get(name) != num_classes:
            there = ", ".join(f"{n!r} of {size}" for n, size in found.items()) or "none"
            raise ValueError(
                f"--compressed-from has no classification head {name!r} of {num_classes} classes, "
                f"but {there}"
            )

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        state = super().state_dict()
        return {KEY: pack(coded_state(self._coded, state), QUICK)}

    def load_state_dict(self, state_dict, strict=True, *args, **kwargs):
        """
        Raises:
            ValueError: if a tensor is damaged, or the codes are not those of this model.
        """
        with _told():
            if not is_packed(state_dict):
                raise ValueError(
                    "this checkpoint is not compressed: train it with its own --arch, or give it "
                    "to fairseq-compress first"
                )
            coded = unpack(state_dict[KEY])
            if not same_codes(coded, self._coded):
                raise ValueError(
                    "this checkpoint was not made from --compressed-from: its codes are others"
                )
        return nn.Module.load_state_dict(self, state_of(coded), strict)


@contextmanager
def _told() -> Iterator[None]:
    """Log what is wrong before it is raised."""
    try:
        yield
    except ValueError as error:
        logger.error("%s", error)
        raise


@cache
def _with(mixin: type, kind: type) -> type:
    """A class that is both; it goes by the original's name."""
    return type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})


def read_packed(path: str | Path) -> dict[str, Coded]:
    """The tensors of a compressed checkpoint."""
    return unpack(checkpoint_files.read(path)["model"][KEY])


def trainable(model: BaseFairseqModel, coded: Mapping[str, Coded]) -> BaseFairseqModel:
    """This model with these weights, whose stored values are its parameters."""
    model.load_state_dict(expand_all({KEY: pack(coded, QUICK)}))
    make_trainable_(model, coded)
    model.__class__ = _with(TrainsValues, type(model))
    model._coded = dict(coded)
    return model


# --- writing --------------------------------------------------------------------------------------


def compress_checkpoint(state: Mapping[str, Any], tensors: Mapping[str, Coded]) -> dict[str, Any]:
    """A checkpoint, as `checkpoint_files.read` gives it, with its model in coded form.

    What only serves to go on with the training goes: the optimizer, and what was measured so far.

    Args:
        state: is not changed.
        tensors: all of the model, by the names that the built model has for them.
    """
    small = {**state, "model": {KEY: pack(tensors)}}
    for name in ("args", "cfg"):  # the one in older checkpoints, the other in newer ones
        if small.get(name) is not None:
            small[name] = copy.deepcopy(small[name])
            _describe_(small["args"] if name == "args" else small["cfg"]["model"])
    drop_optimizer_(small)
    small["optimizer_history"] = small.get("optimizer_history", [])[-1:]
    extra = small.get("extra_state") or {}
    small["extra_state"] = {k: extra[k] for k in ("train_iterator", "epoch") if k in extra}
    return small


def _describe_(cfg: Any) -> None:
    """Say in a model's configuration that its checkpoint is compressed."""
    with writable(cfg):
        entries = entries_of(cfg)
        if entries.get("compressed_arch") is None:
            entries["compressed_arch"] = entries.get("_name") or entries["arch"]
        for key in ("_name", "arch"):
            if key in entries:
                entries[key] = ARCH
