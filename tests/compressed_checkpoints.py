"""Compressed checkpoints of every kind, for the tests of what loads them."""

from functools import cache
from pathlib import Path

import torch
from pruned_checkpoints import prune_every, train_every
from torch import Tensor

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.compression import Coded, keep, magnitude_mask, quantize
from lite_transformer_plugin.models.compressed import compress_checkpoint

KINDS = ["lite_transformer", "transformer", "bart", "legacy", "pruned"]


def code(tensors: dict[str, Tensor], bits: int | None = 4, share: float = 0.3) -> dict[str, Coded]:
    """Everything in codes but vectors, tied tensors once."""
    found: dict[int, Coded] = {}
    for tensor in tensors.values():
        if tensor.is_floating_point() and tensor.dim() > 1:
            sparse = tensor * magnitude_mask(tensor, share)
            found[id(tensor)] = quantize(sparse, bits) if bits else keep(sparse, exact=True)
        else:
            found[id(tensor)] = keep(tensor)
    return {name: found[id(tensor)] for name, tensor in tensors.items()}


def compress(path: Path, output: Path, **how) -> dict[str, Coded]:
    """Write a compressed checkpoint; what it holds."""
    model, _ = build.checkpoint(path)
    coded = code(dict(model.state_dict(keep_vars=True)), **how)
    torch.save(compress_checkpoint(checkpoint_files.read(path), coded), output)
    return coded


@cache
def compress_every(session: Path) -> dict[str, tuple[Path, dict[str, Coded]]]:
    """Of every kind, the heads of one removed before: its file and what is in it."""
    paths = dict(train_every(session))
    paths["pruned"] = prune_every(session)["lite_transformer"]
    found = {}
    for kind in KINDS:
        output = paths[kind].with_name(f"compressed-{kind}.pt")
        found[kind] = output, compress(paths[kind], output)
    return found


@cache
def expanded_every(session: Path) -> dict[str, Path]:
    """The same weights in ordinary checkpoints, which nothing has to expand."""
    paths = dict(train_every(session))
    paths["legacy"] = paths["transformer"]  # the same weights, and loads faster
    paths["pruned"] = prune_every(session)["lite_transformer"]
    found = {}
    for kind, (packed, _) in compress_every(session).items():
        model, _ = build.checkpoint(packed)
        state = checkpoint_files.read(paths[kind])
        found[kind] = packed.with_name(f"expanded-{kind}.pt")
        torch.save(state | {"model": model.state_dict()}, found[kind])
    return found
