"""Gates scale the outputs of attention heads (Michel et al. 2019, section 2.3: xi_h).

Letters: T positions, B batch, H heads of one attention module, D channels of a head. A gate acts
on the input (T, B, H * D) of ``out_proj``, which is the heads' outputs side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .names import Head, Place, attentions, check_heads


class _Gated:
    """The gates of one attention module, installed while there are any.

    fairseq's attention takes one of two ways: either it calls ``out_proj``, or it hands the raw
    weights to torch, where no hook is asked. So for the time of one call something stands in for
    ``out_proj``, whatever way is taken: a projection whose columns are scaled or, for gates that
    differ from sentence to sentence, something that passes the heads' outputs through. With gates
    of one the result is the same to the last bit.
    """

    def __init__(self, module: nn.Module, heads: int):
        self.module, self.heads = module, heads
        self.gates: list[Tensor] = []
        self.call = signature(module.forward)
        self.out_proj: nn.Module | None = None
        self.hooks: list[Any] = []

    def add(self, gate: Tensor) -> None:
        if not self.gates:
            self.hooks = [
                self.module.register_forward_pre_hook(self._before, with_kwargs=True),
                # also after an exception, so that out_proj is always put back
                self.module.register_forward_hook(self._after, always_call=True),
            ]
        self.gates.append(gate)

    def remove(self, gate: Tensor) -> None:
        self._put_back()
        del self.gates[next(i for i, other in enumerate(self.gates) if other is gate)]
        if not self.gates:
            for hook in self.hooks:
                hook.remove()
            del self.module.gated

    def _put_back(self) -> None:
        if self.out_proj is not None:
            self.module.out_proj, self.out_proj = self.out_proj, None

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._put_back()  # an interrupt from the keyboard leaves a call without _after
        self._check(self.call.bind(*args, **kwargs).arguments)
        self.out_proj = module.out_proj
        if all(gate.dim() == 1 for gate in self.gates):
            module.out_proj = _Scaled(module.out_proj, self.gates)
        else:
            module.out_proj = _PassThrough(module.out_proj.weight)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        incremental = arguments.get("incremental_state") is not None
        length, batch = arguments["query"].shape[:2]
        for shape in (gate.shape for gate in self.gates if gate.dim() > 1):
            if incremental:
                raise ValueError(
                    "gates per sentence or per token do not work with incremental state, where "
                    "beam search changes the order of the batch: use one gate per head"
                )
            if shape[:-1] != (length, batch)[-len(shape) + 1 :]:
                raise ValueError(
                    f"a gate of shape {tuple(shape)} does not fit {length} positions x {batch} "
                    f"sentences with {self.heads} heads"
                )

    def _after(self, module: nn.Module, args: tuple, output: tuple | None) -> tuple | None:
        scaled = isinstance(module.out_proj, _Scaled)
        self._put_back()
        if output is None or scaled:  # the call has failed, or all is done
            return None
        x, weights = output  # T x B x (H * D)
        split = x.view(x.size(0), x.size(1), self.heads, -1)
        for gate in self.gates:  # H, B x H or T x B x H: the dimensions in front are broadcast
            split = split * gate.to(x).unsqueeze(-1)
        return module.out_proj(split.view(x.size())), weights


class _Scaled(nn.Module):
    """An output projection whose columns are scaled, which is cheaper than scaling its inputs."""

    def __init__(self, out_proj: nn.Module, gates: Iterable[Tensor]):
        super().__init__()
        weight = out_proj.weight  # C x (H * D)
        split = weight.view(weight.size(0), len(next(iter(gates))), -1)
        for gate in gates:
            split = split * gate.to(weight).unsqueeze(-1)
        self.weight = split.view(weight.size())
        self.bias = out_proj.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _PassThrough(nn.Module):
    """Returns its input: when called, and when torch multiplies by its weight."""

    def __init__(self, like: Tensor):
        super().__init__()
        self.weight = _identity(like.size(1), like.dtype, like.device)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return x


@lru_cache(maxsize=8)
def _identity(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else it could not be used in training later
        return torch.eye(size, dtype=dtype, device=device)


def set_gates(model: nn.Module, gates: Mapping[Place, Tensor]) -> Callable[[], None]:
    """Scale head outputs on every path of the model, until what is returned is called.

    Args:
        gates: for each attention module, keyed by part and layer, a tensor of shape (H,) that
            works everywhere, or of shape (B, H) or (T, B, H) for teacher-forced passes. They may
            be on any device and in any precision; where they require gradients, these arrive.
            Several gates of a module multiply. With activation checkpointing the backward pass
            runs the layers again: call what is returned after it.

    Raises:
        ValueError: for a place without attention and a gate of another shape; later, in a pass
            with another T or B, and for gates other than (H,) in one with incremental state.
    """
    modules = {a.place: a for a in attentions(model)}
    for (part, layer), gate in gates.items():
        if (part, layer) not in modules:
            raise ValueError(f"{part}:{layer}: {type(model).__name__} has no attention there")
        heads = len(modules[part, layer].heads)
        if gate.dim() not in (1, 2, 3) or gate.size(-1) != heads:
            raise ValueError(
                f"a gate of shape {tuple(gate.shape)} does not fit the {heads} heads of "
                f"{part}:{layer}: its last dimension must be {heads}"
            )
    undo = []
    for place, gate in gates.items():
        module, heads = modules[place].module, len(modules[place].heads)
        if heads:  # where all were removed there is nothing to scale
            if not hasattr(module, "gated"):
                module.gated = _Gated(module, heads)
            module.gated.add(gate)
            undo.append(partial(module.gated.remove, gate))

    def remove() -> None:
        while undo:
            undo.pop()()

    return remove


@contextmanager
def gated(model: nn.Module, gates: Mapping[Place, Tensor]) -> Iterator[None]:
    """``set_gates`` for a while: everything is as before afterwards, also after an exception."""
    remove = set_gates(model, gates)
    try:
        yield
    finally:
        remove()


# --- masks ----------------------------------------------------------------------------------------


def mask_gates(
    model: nn.Module, heads: Iterable[Head], rescale: bool = False
) -> dict[Place, Tensor]:
    """Gates of zeros for these heads and ones for the others; only modules that lose a head.

    Args:
        rescale: multiply what is left of a module by n / n_left, n its number of heads.

    Raises:
        ValueError: if no head is named, or one that the model has not.
    """
    masked = set(heads)
    if not masked:
        raise ValueError("a mask must name at least one head, as E:1:3")
    check_heads(model, masked)
    gates = {}
    for attention in attentions(model):
        kept = [name not in masked for name in attention.names()]
        if not all(kept):
            scale = len(kept) / max(1, sum(kept)) if rescale else 1.0
            gates[attention.place] = torch.tensor(kept, dtype=torch.float) * scale
    return gates


def mask_heads(
    model: nn.Module, heads: Iterable[Head], rescale: bool = False
) -> Callable[[], None]:
    """Mask heads until what is returned is called; see ``mask_gates``."""
    return set_gates(model, mask_gates(model, heads, rescale))


@contextmanager
def masked(model: nn.Module, heads: Iterable[Head], rescale: bool = False) -> Iterator[None]:
    """Mask heads for a while: ``with masked(model, parse_heads("E:1:3")):``; see ``mask_gates``."""
    with gated(model, mask_gates(model, heads, rescale)):
        yield
