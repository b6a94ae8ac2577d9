"""The projection onto the vocabulary, multiplied as a CPU does it fastest while decoding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 8  # sentences times beam; at 4 another layout of small matrices is faster, at 64 slower


class PackedMatrix:
    """A large weight (V, C) and a copy of it that oneDNN has laid out for its products.

    At 4 to 320 rows the product takes 0.4 to 0.95 times as long as ``F.linear``. The copy needs as
    much memory as the weight. It does not notice changes of the weight: pack again after one.
    """

    def __init__(self, weight: Tensor):
        self.weight = weight
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 64)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMatrix, (self.weight,)  # the layout is the machine's: copies pack anew

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether this build of torch can pack such a weight."""
        plain = weight.device.type == "cpu" and weight.dtype == torch.float32
        known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        return plain and known and torch.backends.mkldnn.is_available()

    def product(self, x: Tensor) -> Tensor:
        """``F.linear(x, weight)`` without gradients: (..., V) of features (..., C)."""
        moved = self.weight.device.type != "cpu" or x.dtype != torch.float32
        if moved or x.numel() == 0:
            return F.linear(x, self.weight)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
