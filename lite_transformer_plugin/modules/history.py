"""What a decoder remembers of earlier positions, (S, ...), reordered and extended by one copy."""

from typing import Optional

import torch
from torch import Tensor


def reorder_with_room(past: Tensor, new_order: Tensor, dim: int) -> Tensor:
    """The hypotheses of ``past`` (S, ...) in another order, with room for one more position.

    A beam search reorders before every step, and every step appends: copying straight to where the
    step appends makes one copy in place of two.

    Args:
        new_order: (B), indices into dimension ``dim`` of the past.

    Returns:
        (S + 1, ...); the last position is not yet written.
    """
    if past.requires_grad:  # autograd follows no copy into a part of a tensor
        chosen = past.index_select(dim, new_order)
        return torch.cat([chosen, chosen[-1:]])
    size = list(past.size())
    size[0], size[dim] = past.size(0) + 1, new_order.size(0)
    room = past.new_empty(size)
    torch.index_select(past, dim, new_order, out=room[:-1])
    return room


def append(past: Optional[Tensor], room: Optional[Tensor], new: Tensor) -> Tensor:
    """``past`` (S, ...), then ``new`` (T, ...); in place where ``room`` holds the past already."""
    if past is None:
        return new.contiguous()
    if room is None or new.size(0) != 1 or room.requires_grad:
        return torch.cat([past, new])
    room[-1:] = new
    return room
