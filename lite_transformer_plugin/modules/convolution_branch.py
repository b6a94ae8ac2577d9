"""The local branch of LSRA: linear, GLU, convolution, linear (Wu et al. 2020, figure 3b)."""

from typing import Dict, Optional

import torch
import torch.nn.functional as F
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from .depthwise_convolution import DynamicConvolution, LightweightConvolution

CONVOLUTIONS = ("lightweight", "dynamic")


def linear(in_features: int, out_features: int, q_noise: float, qn_block_size: int) -> nn.Module:
    """A Xavier-initialised linear layer with zero bias, under fairseq's quantisation noise."""
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return quant_noise(layer, q_noise, qn_block_size)


class ConvolutionBranch(nn.Module):
    """Local context of C channels; padded positions never reach a neighbour.

    Args:
        channels: C, width of the branch.
        kernel_size: K of its convolution.
        heads: weight-sharing groups of the convolution.
        conv_type: ``lightweight`` or ``dynamic``.
        glu: gate the convolution's input; the first linear layer is then C -> 2C.
        causal: look back only (decoder).
        weight_softmax, weight_dropout: of the convolution's taps.
        q_noise, qn_block_size: fairseq's quantisation noise for the linear layers.

    Raises:
        ValueError: for an unknown ``conv_type``, and what the convolution raises.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        heads: int,
        conv_type: str,
        glu: bool,
        causal: bool,
        weight_softmax: bool = True,
        weight_dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        if conv_type not in CONVOLUTIONS:
            raise ValueError(
                f"unknown convolution type {conv_type!r}: choose one of {', '.join(CONVOLUTIONS)}"
            )
        self.glu = glu
        sizes = (channels, kernel_size, heads, causal, weight_softmax, weight_dropout)
        if conv_type == "dynamic":
            self.convolution = DynamicConvolution(
                *sizes, q_noise=q_noise, qn_block_size=qn_block_size
            )
        else:
            self.convolution = LightweightConvolution(*sizes)
        self.linear1 = linear(channels, 2 * channels if glu else channels, q_noise, qn_block_size)
        self.linear2 = linear(channels, channels, q_noise, qn_block_size)

    def forward(
        self,
        x: Tensor,
        padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
    ) -> Tensor:
        """x: (T, B, C); padding_mask: (B, T), true at padding; returns (T, B, C)."""
        # as rows: a slice of channels is multiplied without a copy
        x = self.linear1(x.flatten(0, 1)).view(x.size(0), x.size(1), -1)
        if self.glu:
            x = F.glu(x, dim=-1)
        if padding_mask is not None:
            # here and not at the input: linear1's bias would make padding non-zero again
            x = x.masked_fill(padding_mask.to(torch.bool).transpose(0, 1).unsqueeze(-1), 0)
        return self.linear2(self.convolution(x, incremental_state))
