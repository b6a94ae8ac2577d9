"""Self-attention of the global branch: fairseq's parameters, any padding, any chunking.

Letters: T query positions, S key positions, B batch, C channels, H heads, D = C / H.
"""

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from .history import append, reorder_with_room
from .products import similarity, weighted_sum


def column_major(weight: Tensor) -> Tensor:
    """The same matrix, laid out as a CPU multiplies it fastest with few rows."""
    return weight.t().contiguous().t() if weight.device.type == "cpu" else weight


class SelfAttention(MultiheadAttention):
    """fairseq's multi-head self-attention with two of its gaps closed.

    Parameters, initialisation and cache are inherited, so weights and checkpoints are
    interchangeable with fairseq's own module. Different are:

    * a query always sees itself. Real queries do so anyway; a padded one, which fairseq may leave
      with nothing to attend to, then gives a finite value instead of NaN, in any precision;
    * cached decoding takes chunks of any length and stays causal inside a chunk.

    ``out_proj`` is a module call on every path, so one hook there sees all head outputs.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.padding_sees_itself: bool = True
        # the three input projections as one, made for generation only
        self.register_buffer("fused_weight", None, persistent=False)
        self.register_buffer("fused_bias", None, persistent=False)

    def make_generation_fast_(self, **kwargs):
        """Project queries, keys and values by one product; fairseq calls this before generation.

        Not where something hooks into a projection, as fairseq's quantisation noise does.
        """
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if all(type(p) is nn.Linear and not p._forward_pre_hooks for p in projections):
            self.fused_weight = torch.cat([p.weight.detach() for p in projections])
            self.fused_bias = torch.cat([p.bias.detach() for p in projections])

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend from every position of ``query`` (T, B, C) to itself and, if cached, its past.

        Args:
            query: (T, B, C). ``key`` and ``value`` are part of fairseq's signature and ignored:
                they are the query here.
            key_padding_mask: (B, T), true at padding.
            attn_mask: (T, T), additive, as fairseq's decoder makes it for a full pass.
            need_weights: also return the weights, (B, T, S), averaged over heads.
            need_head_weights: return them per head, (H, B, T, S).
            static_kv, before_softmax: part of fairseq's signature, without meaning here.

        Returns:
            the output (T, B, C), and the weights or None.
        """
        tgt_len, bsz, _ = query.size()
        q, k, v = self._project(query)
        padding = key_padding_mask
        if incremental_state is not None:
            k, v, padding = self._extend_cache(incremental_state, k, v, padding)
        causal = attn_mask is not None or incremental_state is not None
        visible = self._visible(q, k.size(2), padding, attn_mask, causal)

        weights: Optional[Tensor] = None
        if need_weights or need_head_weights or tgt_len == 1:
            weights = self._weights(q, k, visible)
            attended = weighted_sum(self.dropout_module(weights), v.flatten(0, 1))
            attended = attended.view(bsz, self.num_heads, tgt_len, self.head_dim)
        else:
            dropping = self.training or self.dropout_module.apply_during_inference
            rate = self.dropout_module.p if dropping else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, visible, rate)

        # B x H x T x D -> T x B x C
        output = self.out_proj(attended.permute(2, 0, 1, 3).reshape(tgt_len, bsz, -1))
        if weights is None or not (need_weights or need_head_weights):
            return output, None
        weights = weights.view(bsz, self.num_heads, tgt_len, -1)
        return output, weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)

    def _project(self, query: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, T, D) each."""
        tgt_len, bsz, _ = query.size()
        # as rows: a slice of channels is multiplied as it is, where in three dimensions each
        # projection would copy it
        rows = query.flatten(0, 1)
        if self.fused_weight is not None:
            qkv = F.linear(rows, self.fused_weight, self.fused_bias)
            qkv = qkv.view(tgt_len, bsz, 3, self.num_heads, self.head_dim)
            q, k, v = qkv.permute(2, 1, 3, 0, 4).unbind(0)
            return q, k, v
        return (
            self._split_heads(self.q_proj(rows), bsz),
            self._split_heads(self.k_proj(rows), bsz),
            self._split_heads(self.v_proj(rows), bsz),
        )

    def _weights(self, q: Tensor, k: Tensor, visible: Optional[Tensor]) -> Tensor:
        """Attention weights (B * H, T, S)."""
        scores = similarity((q * self.scaling).flatten(0, 1), k.flatten(0, 1))
        if visible is not None:
            split = scores.view(q.size(0), q.size(1), q.size(2), -1)
            scores = split.masked_fill(~visible, float("-inf")).view(scores.size())
        return F.softmax(scores, dim=-1)

    def _split_heads(self, x: Tensor, bsz: int) -> Tensor:
        # (T * B) x C -> B x H x T x D
        return x.view(-1, bsz, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _visible(
        self,
        q: Tensor,
        src_len: int,
        padding: Optional[Tensor],
        attn_mask: Optional[Tensor],
        causal: bool,
    ) -> Optional[Tensor]:
        """True where a query may look: (T, S) or (B, 1, T, S); None where all may see all."""
        tgt_len = q.size(2)
        visible: Optional[Tensor] = None
        if attn_mask is not None:
            visible = attn_mask.eq(0)
        elif causal and tgt_len > 1:
            ones = torch.ones(tgt_len, src_len, dtype=torch.bool, device=q.device)
            visible = ones.tril(src_len - tgt_len)
        if padding is not None:
            real = ~padding.to(torch.bool)[:, None, None, :]
            visible = real if visible is None else visible & real
            if self.padding_sees_itself:
                own = torch.ones(tgt_len, src_len, dtype=torch.bool, device=q.device)
                visible = visible | own.tril(src_len - tgt_len).triu(src_len - tgt_len)
        return visible

    def _extend_cache(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        k: Tensor,
        v: Tensor,
        padding: Optional[Tensor],
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """Append this chunk's keys, values (B, H, T, D) and padding (B, T) to the cached ones."""
        cache = self._get_input_buffer(incremental_state)
        pairs, past_padding = cache.get("pairs"), cache.get("prev_key_padding_mask")
        if pairs is not None:
            if padding is not None and past_padding is None:
                past_padding = padding.new_zeros(pairs.size(2), pairs.size(0))
            if padding is None and past_padding is not None:
                padding = past_padding.new_zeros(k.size(0), k.size(2))
        if past_padding is not None and padding is not None:
            padding = torch.cat([past_padding, padding.to(past_padding.dtype)], dim=1)
        # 2 x B x H x T x D -> T x 2 x B x H x D
        pairs = append(pairs, cache.get("room"), torch.stack([k, v]).permute(3, 0, 1, 2, 4))
        self._remember(incremental_state, pairs, None, padding)
        k, v = pairs.permute(1, 2, 3, 0, 4).unbind(0)
        return k, v, padding

    def _remember(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        pairs: Tensor,
        room: Optional[Tensor],
        padding: Optional[Tensor],
    ) -> None:
        """Keep keys and values together, (S, 2, B, H, D), and apart by fairseq's names."""
        k, v = pairs.permute(1, 2, 3, 0, 4).unbind(0)
        cache: Dict[str, Optional[Tensor]] = {"pairs": pairs, "room": room}
        cache.update({"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})
        self._set_input_buffer(incremental_state, cache)

    @torch.jit.export
    def reorder_incremental_state(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        new_order: Tensor,
    ) -> Dict[str, Dict[str, Optional[Tensor]]]:
        """Follow a beam search that reorders its batch."""
        cache = self._get_input_buffer(incremental_state)
        pairs, padding = cache.get("pairs"), cache.get("prev_key_padding_mask")
        if pairs is not None:
            room = reorder_with_room(pairs, new_order, dim=2)
            padding = None if padding is None else padding.index_select(0, new_order)
            self._remember(incremental_state, room[:-1], room, padding)
        return incremental_state
