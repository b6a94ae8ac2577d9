"""Long-Short Range Attention: half the channels attend, half convolve (Wu et al. 2020, section 4).

The channels are split, not projected; there is no mixing layer after the branches, the FFN mixes.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from .attention import SelfAttention
from .convolution_branch import ConvolutionBranch


@dataclass(frozen=True)
class LSRAConfig:
    """Sizes of one LSRA module; the embedding size is ``attention_dim + conv_dim``."""

    attention_dim: int  # channels of the global branch
    conv_dim: int  # channels of the local branch
    attention_heads: int = 4
    conv_heads: int = 4  # weight-sharing groups of the convolution
    kernel_size: int = 3
    conv_type: str = "dynamic"
    glu: bool = True
    causal: bool = False
    weight_softmax: bool = True
    weight_dropout: float = 0.0
    attention_dropout: float = 0.0
    q_noise: float = 0.0
    qn_block_size: int = 8

    def __post_init__(self):
        if min(self.attention_dim, self.conv_dim, self.attention_heads) < 1:
            raise ValueError(
                f"LSRA needs positive sizes, not {self.attention_dim} attention channels in "
                f"{self.attention_heads} heads and {self.conv_dim} convolution channels"
            )
        if self.attention_dim % self.attention_heads != 0:
            raise ValueError(
                f"{self.attention_heads} attention heads do not divide the {self.attention_dim} "
                f"channels of the global branch: choose a divisor of {self.attention_dim}"
            )


class LongShortRangeAttention(nn.Module):
    """Takes the place of self-attention in a fairseq transformer layer.

    The first ``attention_dim`` channels go through multi-head attention, the rest through the
    convolution branch; the outputs are concatenated in that order.
    """

    def __init__(self, cfg: LSRAConfig):
        super().__init__()
        self.attention_dim = cfg.attention_dim
        self.conv_dim = cfg.conv_dim
        self.attention = SelfAttention(
            cfg.attention_dim,
            cfg.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=cfg.q_noise,
            qn_block_size=cfg.qn_block_size,
        )
        self.convolution = ConvolutionBranch(
            cfg.conv_dim,
            cfg.kernel_size,
            cfg.conv_heads,
            cfg.conv_type,
            cfg.glu,
            cfg.causal,
            cfg.weight_softmax,
            cfg.weight_dropout,
            cfg.q_noise,
            cfg.qn_block_size,
        )

    @property
    def num_heads(self) -> int:
        """Read by fairseq's decoder layer, as is ``head_dim``."""
        return self.attention.num_heads

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        need_weights: bool = False,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Mix positions of ``query`` (T, B, C); ``key`` and ``value`` are the query.

        Args:
            key_padding_mask: (B, T), true at padding.
            incremental_state: decode the chunk ``query`` after all that was decoded before.
            attn_mask: (T, T), additive, for the attention branch.
            need_weights, need_head_weights: return the attention branch's weights, (B, T, S)
                averaged over heads or (H, B, T, S).

        Returns:
            the output (T, B, C), and the weights or None.
        """
        global_x, local_x = query.split([self.attention_dim, self.conv_dim], dim=-1)
        global_x, weights = self.attention(
            global_x,
            global_x,
            global_x,
            key_padding_mask=key_padding_mask,
            incremental_state=incremental_state,
            need_weights=need_weights,
            attn_mask=attn_mask,
            need_head_weights=need_head_weights,
        )
        local_x = self.convolution(local_x, key_padding_mask, incremental_state)
        return torch.cat([global_x, local_x], dim=-1), weights

    def _get_input_buffer(
        self, incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]]
    ) -> Dict[str, Optional[Tensor]]:
        return self.attention._get_input_buffer(incremental_state)

    def _set_input_buffer(
        self,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        buffer: Dict[str, Optional[Tensor]],
    ) -> Optional[Dict[str, Dict[str, Optional[Tensor]]]]:
        return self.attention._set_input_buffer(incremental_state, buffer)
