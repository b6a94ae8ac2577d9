"""Encoder-decoder attention with a lean step: fairseq's parameters, cache and answers.

Letters: T target positions, S source positions, B hypotheses, N sentences (B / N hypotheses of a
beam look at one source), C channels, H heads, D = C / H.
"""

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor


class CrossAttention(MultiheadAttention):
    """fairseq's multi-head attention, for a query that looks at an encoder's output only.

    Parameters, initialisation, cache and its reordering are inherited, so weights and checkpoints
    are interchangeable. A step of a beam search takes a third of the operations of fairseq's, and
    ``out_proj`` is a module call on every path, so one hook there sees all head outputs.
    """

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend from ``query`` (T, B, C) to ``key`` (S, B, C'), the encoder's output.

        Args:
            key: not read again once it is in ``incremental_state``; ``value`` is the key.
            key_padding_mask: (B, S), true at padding.
            need_weights: also return the weights, (B, T, S), averaged over heads.
            need_head_weights: return them per head, (H, B, T, S).
            static_kv, attn_mask, before_softmax: part of fairseq's signature; the key never
                changes here, and all of it may be seen.

        Returns:
            the output (T, B, C), and the weights or None.
        """
        tgt_len, bsz, _ = query.size()
        k, v, padding = self._source(bsz, key, key_padding_mask, incremental_state)
        # T x B x C -> N x H x (B / N * T) x D
        q = self.q_proj(query).view(tgt_len, k.size(0), -1, self.num_heads, self.head_dim)
        q = q.permute(1, 3, 2, 0, 4).reshape(k.size(0), self.num_heads, -1, self.head_dim)

        weights: Optional[Tensor] = None
        if need_weights or need_head_weights or tgt_len == 1:
            weights = self._weights(q, k, padding)
            attended = torch.bmm(self.dropout_module(weights), v.flatten(0, 1))
        else:
            visible = None if padding is None else ~padding.to(torch.bool)[:, None, None, :]
            dropping = self.training or self.dropout_module.apply_during_inference
            rate = self.dropout_module.p if dropping else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, visible, rate)

        # N x H x (B / N * T) x D -> T x B x C
        attended = attended.view(k.size(0), self.num_heads, -1, tgt_len, self.head_dim)
        output = self.out_proj(attended.permute(3, 0, 2, 1, 4).reshape(tgt_len, bsz, -1))
        if weights is None or not (need_weights or need_head_weights):
            return output, None
        weights = weights.view(k.size(0), self.num_heads, -1, tgt_len, k.size(2))
        weights = weights.transpose(0, 1).reshape(self.num_heads, bsz, tgt_len, -1)
        return output, weights if need_head_weights else weights.mean(dim=0)

    def _weights(self, q: Tensor, k: Tensor, padding: Optional[Tensor]) -> Tensor:
        """Attention weights (N * H, B / N * T, S)."""
        scores = torch.bmm((q * self.scaling).flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        if padding is not None:
            split = scores.view(k.size(0), self.num_heads, -1, k.size(2))
            split.masked_fill_(padding.to(torch.bool)[:, None, None, :], float("-inf"))
        return F.softmax(scores, dim=-1)

    def _source(
        self,
        bsz: int,
        key: Optional[Tensor],
        padding: Optional[Tensor],
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """Keys and values (N, H, S, D) and padding (N, S); projected once in a decoding."""
        if incremental_state is not None:
            cache = self._get_input_buffer(incremental_state)
            if "prev_key" in cache:
                k, v = cache["prev_key"], cache["prev_value"]
                assert k is not None and v is not None
                seen: Optional[Tensor] = None
                if "prev_key_padding_mask" in cache:
                    seen = cache["prev_key_padding_mask"]
                return k, v, seen
        assert key is not None
        if incremental_state is not None and self.beam_size > 1 and bsz == key.size(1):
            key = key[:, :: self.beam_size]  # all hypotheses of a sentence have the same source
            padding = None if padding is None else padding[:: self.beam_size]
        k, v = self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(key))
        if incremental_state is not None:
            k, v = k.contiguous(), v.contiguous()  # they are read at every step
            if padding is not None and not padding.any():
                padding = None
            cache: Dict[str, Optional[Tensor]] = {
                "prev_key": k,
                "prev_value": v,
                "prev_key_padding_mask": padding,
            }
            self._set_input_buffer(incremental_state, cache)
        return k, v, padding

    def _split_heads(self, x: Tensor) -> Tensor:
        # S x N x C -> N x H x S x D
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(1, 2, 0, 3)
