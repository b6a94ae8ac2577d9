"""What becomes of fairseq's attention modules when they lose heads."""

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from .attention import SelfAttention


class PrunedSelfAttention(SelfAttention):
    """fairseq's self-attention with fewer heads than its inputs have room for.

    torch's fused attention, which fairseq takes, insists on heads as wide together as the inputs;
    fairseq's other way is slower and would cost a part of what pruning gains. Results are
    fairseq's, those at padded queries included.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.padding_sees_itself = False

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether this class computes what ``module`` does."""
        plain = type(module) is MultiheadAttention and module.self_attention
        more = plain and (module.use_xformers or module.add_zero_attn)
        return plain and not more and module.q_proj.bias is not None

    @classmethod
    def of(cls, module: MultiheadAttention) -> "PrunedSelfAttention":
        """One with the projections of ``module``, which have been cut to its ``num_heads``."""
        with torch.device("meta"):  # its own projections are thrown away
            new = cls(module.embed_dim, module.num_heads, self_attention=True)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj", "dropout_module"):
            setattr(new, name, getattr(module, name))
        return new.train(module.training)


class HeadlessAttention(nn.Module):
    """Takes the place of an attention module whose heads contribute nothing.

    The sum over no heads is zero, so what the module adds to the residual is the bias of its
    output projection, kept under its old name ``out_proj.bias``. Nothing is ever cached.

    Attributes are those that fairseq reads of an attention: ``num_heads`` is 0, ``head_dim`` that
    of the heads which were removed, and ``heads_left`` says that none is left.
    """

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.out_proj = _Bias(attention.out_proj.bias)
        self.channels: int = attention.out_proj.weight.size(0)
        self.num_heads: int = 0
        self.embed_dim: int = 0
        self.head_dim: int = attention.head_dim
        self.beam_size: int = 1
        self.heads_left: Tuple[int, ...] = ()

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
        """The bias at every position of ``query`` (T, B, C), and weights if they are asked for.

        Weights are equal over all positions of ``key`` that may be seen, so that what reads them,
        as fairseq's alignments do, finds a distribution that prefers nothing: (B, T, S), or
        (1, B, T, S) with ``need_head_weights``. In BART's beam search padding is seen, too: the
        mask is that of all sentences then, also of those that are finished.
        """
        tgt_len, bsz, _ = query.size()
        bias = self.out_proj.bias
        if bias is None:
            output = query.new_zeros(tgt_len, bsz, self.channels)
        else:
            output = bias.expand(tgt_len, bsz, self.channels)
        if not (need_weights or need_head_weights):
            return output, None
        src_len = tgt_len if key is None else key.size(0)
        scores = query.new_zeros(bsz, tgt_len, src_len)
        if attn_mask is not None:
            scores = scores + attn_mask
        if key_padding_mask is not None and self.beam_size == 1:
            padding = key_padding_mask.to(torch.bool).unsqueeze(1)
            scores = scores.masked_fill(padding, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return output, weights.unsqueeze(0) if need_head_weights else weights

    def set_beam_size(self, beam_size: int):
        """Called when keys are those of sentences, and queries those of their beams."""
        self.beam_size = beam_size

    def reorder_incremental_state(
        self,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        new_order: Tensor,
    ) -> Optional[Dict[str, Dict[str, Optional[Tensor]]]]:
        return incremental_state

    def _get_input_buffer(
        self, incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]]
    ) -> Dict[str, Optional[Tensor]]:
        empty: Dict[str, Optional[Tensor]] = {}
        return empty

    def _set_input_buffer(
        self,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        buffer: Dict[str, Optional[Tensor]],
    ) -> Optional[Dict[str, Dict[str, Optional[Tensor]]]]:
        return incremental_state


class _Bias(nn.Module):
    def __init__(self, bias: Optional[nn.Parameter]):
        super().__init__()
        self.bias = bias
