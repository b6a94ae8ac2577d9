"""Attention maps: the weights and outputs of every single head while a model reads a batch.

What is seen is what the model itself computes, teacher-forced and without dropout. fairseq hands
out no more than the last cross-attention, and elsewhere the mean over heads at best; here every
attention module is asked for the weights of its heads when it is called. One module is seen at a
time, so that no more than its maps are in memory.

Letters: B sentences, H heads, T queries, S keys, D channels of a head, C channels of the model.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.utils import apply_to_sample
from torch import Tensor, nn

from .frozen import Frozen
from .names import Attention, Place, attentions


class Seen(NamedTuple):
    """What one attention module did with one batch; zeros at queries that are padding."""

    attention: Attention
    weights: Tensor  # (B, H, T, S), at least float32; each row sums to 1, padded keys have 0
    outputs: Tensor  # (B, H, T, D), before the output projection
    queries: Tensor  # tokens (B, T)
    keys: Tensor  # tokens (B, S)
    real_queries: Tensor  # (B, T), false at padding
    real_keys: Tensor  # (B, S)
    numbers: Tensor | None  # of the sentences in their data set, (B,)

    def contributions(self) -> Tensor:
        """What each head adds to the module's output, (B, T, H, C): its share of ``out_proj``."""
        weight = self.attention.module.out_proj.weight  # C x (H * D)
        weight = weight.view(weight.size(0), self.outputs.size(1), -1)
        return torch.einsum("bhtd,chd->bthc", self.outputs, weight)


def watch(model: nn.Module, sample: Mapping[str, Any], *watchers: Callable[[Seen], None]) -> None:
    """Let a model read one batch, and the watchers see each of its attention modules.

    A module without heads has nothing to see. Afterwards the model is as it was.

    Args:
        sample: one of fairseq's batches, with ``src_tokens`` and, for an encoder-decoder,
            ``prev_output_tokens``.

    Raises:
        ValueError: for a batch that is not of text.
    """
    sample = apply_to_sample(lambda x: x.to(next(model.parameters()).device), dict(sample))
    sides = {part: _sides(model, sample, part) for part in {a.part for a in attentions(model)}}

    def see(attention: Attention, weights: Tensor, outputs: Tensor) -> None:
        queries, keys, *real = sides[attention.part]
        padded = ~real[0][:, None, :, None]
        weights = weights.to(torch.promote_types(weights.dtype, torch.float))
        maps = (weights.masked_fill(padded, 0.0), outputs.masked_fill(padded, 0.0))
        seen = Seen(attention, *maps, queries, keys, *real, sample.get("id"))
        for watcher in watchers:
            watcher(seen)

    with Frozen(model), torch.no_grad(), _watched(model, see):
        model(**sample["net_input"])


def attention_maps(model: nn.Module, sample: Mapping[str, Any]) -> dict[Place, Tensor]:
    """The weights (B, H, T, S) of all attention modules for one batch, as ``watch`` has them."""
    maps = {}
    watch(model, sample, lambda seen: maps.update({seen.attention.place: seen.weights}))
    return maps


def _sides(
    model: nn.Module, sample: Mapping[str, Any], part: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens of the queries and of the keys of a part, and where they are no padding."""
    inputs = sample.get("net_input", {})
    target = "prev_output_tokens" if "prev_output_tokens" in inputs else "src_tokens"
    encoder, decoder = ("encoder", "src_tokens"), ("decoder", target)
    pairs = {"E": (encoder, encoder), "A": (decoder, encoder), "D": (decoder, decoder)}
    tokens, real = [], []
    for side, name in pairs[part]:
        if name not in inputs or inputs[name].dim() != 2:
            raise ValueError(f"attention maps need batches of text, with {name} as a matrix")
        tokens.append(inputs[name])
        real.append(inputs[name].ne(getattr(model, side).dictionary.pad()))
    return *tokens, *real


# --- one call -------------------------------------------------------------------------------------


@contextmanager
def _watched(model: nn.Module, see: Callable[[Attention, Tensor, Tensor], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for attention in attentions(model):
            if attention.heads:
                stack.enter_context(_Watched(attention, see))
        yield


class _Watched:
    """Asks one attention module for the weights of its heads, and gives its caller what it asked.

    fairseq's attention has a short way, through torch, that knows no single heads. For the time of
    a call it is sent the long way, as a module that has lost heads is. The results are the same.
    """

    def __init__(self, attention: Attention, see: Callable[[Attention, Tensor, Tensor], None]):
        self.attention, self.see = attention, see
        self.module, self.call = attention.module, signature(attention.module.forward)

    def __enter__(self) -> None:
        self.sent_long = getattr(self.module, "skip_embed_dim_check", None)
        if self.sent_long is not None:
            self.module.skip_embed_dim_check = True
        self.hooks = [
            self.module.register_forward_pre_hook(self._before, with_kwargs=True),
            self.module.register_forward_hook(self._after),
        ]

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()
        if self.sent_long is not None:
            self.module.skip_embed_dim_check = self.sent_long

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        asked = self.call.bind(*args, **kwargs)
        asked.apply_defaults()
        self.asked = [asked.arguments[name] for name in ("need_weights", "need_head_weights")]
        # here and not before: where heads are masked, something stands in for it in each call
        self.hooks.append(module.out_proj.register_forward_pre_hook(self._keep))
        return (), asked.arguments | {"need_weights": True, "need_head_weights": True}

    def _keep(self, out_proj: nn.Module, args: tuple[Tensor]) -> None:
        self.outputs = args[0]  # T x B x (H * D)

    def _after(self, module: nn.Module, args: tuple, output: tuple) -> tuple[Tensor, Tensor | None]:
        self.hooks.pop().remove()
        result, weights = output  # weights: H x B x T x S
        heads = len(self.attention.heads)
        outputs = self.outputs.view(*self.outputs.shape[:2], heads, -1)
        del self.outputs
        self.see(self.attention, weights.transpose(0, 1), outputs.permute(1, 2, 0, 3))
        need_weights, need_head_weights = self.asked
        if need_head_weights:
            return result, weights
        return result, weights.mean(dim=0) if need_weights else None


# --- sums over data -------------------------------------------------------------------------------


def sum_over_processes(totals: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """The sums of what all processes have, each of which must ask for it; float64 tensors."""
    sums = torch.cat([total.flatten() for total in totals.values()])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        distributed_utils.all_reduce(sums, group=distributed_utils.get_data_parallel_group())
    pieces = sums.split([total.numel() for total in totals.values()])
    return {
        key: piece.view(total.size())
        for (key, total), piece in zip(totals.items(), pieces, strict=True)
    }
