"""Lightweight and dynamic convolution (Wu et al. 2019, sections 3 and 4) for the local branch.

Letters: T output positions, S input positions, B batch, C channels, H weight-sharing groups
("heads" of the convolution), R = C / H channels per group, K kernel size.
"""

from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from .history import append, reorder_with_room
from .products import weighted_sum


def band_matrix(taps: Tensor) -> Tensor:
    """Lay kernel taps along the diagonal: (N, T, K) -> (N, T, T + K - 1), [n, t, t + k] = tap k.

    Reading rows of length K + T as rows of length K + T - 1 moves row t by t columns.
    """
    n, t, k = taps.size()
    width = t + k - 1
    return F.pad(taps, (0, t)).view(n, t * (t + k))[:, : t * width].view(n, t, width)


@with_incremental_state
class DepthwiseConvolution(nn.Module):
    """What both convolutions share: window, state for incremental decoding, DropConnect.

    Args:
        channels: C, input and output size.
        kernel_size: K, odd or even.
        heads: H, groups of channels that share one kernel.
        causal: see the last K positions (decoder) instead of those around ("same" padding, the
            extra one of an even kernel on the right).
        weight_softmax: normalise the K taps of every kernel.
        weight_dropout: probability of dropping a tap (DropConnect), in training.

    Raises:
        ValueError: if a size is not positive or ``heads`` does not divide ``channels``.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        heads: int,
        causal: bool,
        weight_softmax: bool = True,
        weight_dropout: float = 0.0,
    ):
        super().__init__()
        if min(channels, kernel_size, heads) < 1:
            raise ValueError(
                f"a convolution of {channels} channels, {heads} heads and kernel size "
                f"{kernel_size} is impossible: all three must be positive"
            )
        if channels % heads != 0:
            raise ValueError(
                f"{heads} convolution heads do not divide the {channels} channels of the local "
                f"branch: choose a divisor of {channels}"
            )
        self.channels = channels
        self.kernel_size = kernel_size
        self.heads = heads
        self.causal = causal
        self.weight_softmax = weight_softmax
        self.left = kernel_size - 1 if causal else (kernel_size - 1) // 2
        # Outputs computed by one band matrix. A band over t outputs costs t * (t + K) products
        # instead of t * K, so a long sentence is cut into blocks; a short one is one block.
        self.block = 64
        self.weight_dropout_module = FairseqDropout(
            weight_dropout, module_name=self.__class__.__name__
        )

    def extra_repr(self) -> str:
        return (
            f"channels={self.channels}, kernel_size={self.kernel_size}, heads={self.heads}, "
            f"causal={self.causal}, weight_softmax={self.weight_softmax}"
        )

    def _normalise(self, taps: Tensor) -> Tensor:
        if self.weight_softmax:
            taps = F.softmax(taps, dim=-1)
        return self.weight_dropout_module(taps)

    def _weigh(self, taps: Tensor, inputs: Tensor, offset: int) -> Tensor:
        """Weigh inputs (N, S, R) by taps (N, T, K); output t is aligned with input offset + t."""
        src_len, tgt_len = inputs.size(1), taps.size(1)
        outputs = []
        for start in range(0, tgt_len, self.block):
            length = min(self.block, tgt_len - start)
            first = offset + start - self.left  # the first input a kernel looks for
            low = max(0, first)
            high = min(src_len, first + length + self.kernel_size - 1)
            band = taps[:, start : start + length]
            if length > 1:
                band = band_matrix(band)
            band = band[:, :, low - first : high - first]
            outputs.append(weighted_sum(band, inputs[:, low:high]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _with_history(
        self,
        x: Tensor,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
    ) -> Tuple[Tensor, int]:
        """Put the cached last K - 1 inputs before x (T, B, C); returns how many there were."""
        if incremental_state is None:
            return x, 0
        assert self.causal, "only a causal convolution can be decoded step by step"
        cache = self.get_incremental_state(incremental_state, "conv_state")
        inputs = x
        if cache is not None:
            inputs = append(cache["inputs"], cache["room"], x)
        kept = inputs[max(0, inputs.size(0) - self.kernel_size + 1) :]
        self._remember(incremental_state, kept, None)
        return inputs, inputs.size(0) - x.size(0)

    def _remember(
        self,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        inputs: Tensor,
        room: Optional[Tensor],
    ) -> None:
        """Keep past inputs (S, B, C); ``room`` holds them too, and has room for one more."""
        cache: Dict[str, Optional[Tensor]] = {"inputs": inputs, "room": room}
        self.set_incremental_state(incremental_state, "conv_state", cache)

    @torch.jit.export
    def reorder_incremental_state(
        self,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]],
        new_order: Tensor,
    ) -> Optional[Dict[str, Dict[str, Optional[Tensor]]]]:
        """Follow a beam search that reorders its batch."""
        cache = self.get_incremental_state(incremental_state, "conv_state")
        if cache is not None:
            past = cache["inputs"]
            assert past is not None
            room = reorder_with_room(past, new_order, dim=1)
            self._remember(incremental_state, room[:-1], room)
        return incremental_state


class LightweightConvolution(DepthwiseConvolution):
    """Lightweight convolution: one (H, K) kernel, the same at every position (section 3)."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.weight = nn.Parameter(torch.empty(self.heads, 1, self.kernel_size))
        nn.init.xavier_uniform_(self.weight)
        self.register_buffer("ready_taps", None, persistent=False)
        self.register_buffer("ready_columns", None, persistent=False)

    def make_generation_fast_(self, retain_dropout: bool = False, **kwargs):
        """Normalise the taps once; fairseq calls this before generation."""
        if not retain_dropout:
            self.ready_taps = self._normalise(self.weight.detach().squeeze(1))
            self.ready_columns = self._columns(self.ready_taps)

    def _columns(self, taps: Tensor) -> Tensor:
        """Taps (H, K) of every channel: (K, 1, C)."""
        return taps.repeat_interleave(self.channels // self.heads, dim=0).t().unsqueeze(1)

    def forward(
        self,
        x: Tensor,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
    ) -> Tensor:
        """Convolve x (T, B, C) over time; (T, B, C)."""
        tgt_len, bsz, channels = x.size()
        taps = self.ready_taps
        if taps is None:
            taps = self._normalise(self.weight.squeeze(1))
        inputs, offset = self._with_history(x, incremental_state)
        if tgt_len == 1 and self.causal:  # one output: the inputs stay as they lie
            columns = self.ready_columns
            if columns is None:
                columns = self._columns(taps)
            return (inputs * columns[-inputs.size(0) :]).sum(0, keepdim=True)
        # S x B x C -> H x S x (B * R): one band per head serves the whole batch
        grouped = inputs.reshape(inputs.size(0), bsz, self.heads, -1).permute(2, 0, 1, 3)
        grouped = grouped.reshape(self.heads, inputs.size(0), -1)
        output = self._weigh(taps.unsqueeze(1).expand(-1, tgt_len, -1), grouped, offset)
        # H x T x (B * R) -> T x B x C
        output = output.view(self.heads, tgt_len, bsz, -1)
        return output.permute(1, 2, 0, 3).reshape(tgt_len, bsz, channels)


class DynamicConvolution(DepthwiseConvolution):
    """Dynamic convolution: the kernel of a position is predicted from its input (section 4).

    ``q_noise`` and ``qn_block_size`` are fairseq's quantisation noise for the predictor.
    """

    def __init__(self, *sizes, q_noise: float = 0.0, qn_block_size: int = 8, **options):
        super().__init__(*sizes, **options)
        # not "weight_...": fairseq's scalar quantisation cuts ".weight" out of parameter names
        self.kernel_linear = quant_noise(
            nn.Linear(self.channels, self.heads * self.kernel_size, bias=False),
            q_noise,
            qn_block_size,
        )
        nn.init.xavier_uniform_(self.kernel_linear.weight)

    def forward(
        self,
        x: Tensor,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
    ) -> Tensor:
        """Convolve x (T, B, C) over time; (T, B, C)."""
        tgt_len, bsz, channels = x.size()
        groups = bsz * self.heads
        taps = self.kernel_linear(x).view(tgt_len, groups, self.kernel_size)
        taps = self._normalise(taps).transpose(0, 1)  # (B * H) x T x K
        inputs, offset = self._with_history(x, incremental_state)
        # S x B x C -> (B * H) x S x R
        grouped = inputs.reshape(inputs.size(0), groups, -1).transpose(0, 1)
        output = self._weigh(taps, grouped, offset)
        # (B * H) x T x R -> T x B x C
        return output.transpose(0, 1).reshape(tgt_len, bsz, channels)
