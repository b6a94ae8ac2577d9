"""Closed heads: nothing reads their outputs, since their columns of the output projection are zero.

A head that training masks for good is written so into every checkpoint. Whatever reads it - stock
commands, averages, removal - has the model that was validated, and needs to be told nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .gates import mask_gates, set_gates
from .names import Head, Place, attentions, parse_heads

Columns = dict[Head, Tensor]  # those of the output projection that read a head: C x D


def closed_heads(model: nn.Module) -> list[Head]:
    """The heads whose columns of the output projection are all zero, sorted."""
    return [head for head, columns in _columns(model).items() if not columns.any()]


def columns_of(model: nn.Module, heads: Iterable[Head]) -> dict[str, Tensor]:
    """Copies of what zero will take the place of, by the names of the heads: for a checkpoint."""
    found = _columns(model)
    return {str(head): found[head].detach().clone() for head in heads}


def restore_columns_(model: nn.Module, columns: Mapping[str, Tensor]) -> None:
    """Put back what ``columns_of`` has copied, where the model still has the head."""
    found = _columns(model)
    with torch.no_grad():
        for name, value in columns.items():
            [head] = parse_heads(name)
            if head in found:
                found[head].copy_(value)


def _columns(model: nn.Module) -> Columns:
    found = {}
    for attention in attentions(model):
        if attention.heads:
            split = attention.module.out_proj.weight.chunk(len(attention.heads), dim=1)
            found.update(zip(attention.names(), split, strict=True))
    return found


def save_closed(model: nn.Module, closed: Callable[[], Iterable[Head]]) -> None:
    """From now on heads are closed in every state dict of the model, whose own weights stay.

    Args:
        closed: asked whenever there is a state dict to make.
    """

    # no method: a copy of the model, such as fairseq's moving average, shall ask the same
    def close(copy: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        heads = set(closed())
        paths = {module: path for path, module in copy.named_modules()}
        for attention in attentions(copy):
            gone = [i for i, head in enumerate(attention.names()) if head in heads]
            if gone:
                name = f"{prefix}{paths[attention.module]}.out_proj.weight"
                weight = state[name].clone()
                weight.view(len(weight), len(attention.heads), -1)[:, gone] = 0
                state[name] = weight

    model.register_state_dict_post_hook(close)


class Switch:
    """Gates of one model of which the next take the place of the last.

    They stay after a pass: activation checkpointing runs layers again in the backward pass, and
    what is translated in validation is to be translated with the same heads.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self._undo: Callable[[], None] = lambda: None

    def set(self, gates: Mapping[Place, Tensor]) -> None:
        """See ``gates.set_gates``; no gates at all are every head as it is."""
        self._undo()
        self._undo = set_gates(self.model, gates)

    def mask(self, heads: Iterable[Head]) -> None:
        """Gates of zero for these heads, if there are any."""
        heads = list(heads)
        self.set(mask_gates(self.model, heads) if heads else {})
