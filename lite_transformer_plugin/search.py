"""fairseq's beam search without what changes no translation: for translating again and again."""

import ctypes
import os
from typing import Any

from fairseq import utils
from fairseq.sequence_generator import EnsembleModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def build_generator(
    task: FairseqTask, model: nn.Module, cfg: DictConfig, encoder_memory: int = 1 << 30
) -> Any:
    """The task's own generator; without alignments it does only what its translations need."""
    extra = {"lm_model": None, "lm_weight": cfg.generation.lm_weight}
    generator = task.build_generator([model], cfg.generation, extra_gen_cls_kwargs=extra)
    # a kind of its own, as one that aligns, may read what ours leaves out
    if type(getattr(generator, "model", None)) is EnsembleModel and hasattr(model, "encoder"):
        generator.model = SearchedModel(model, encoder_memory).eval()
    return generator


class SearchedModel(EnsembleModel):
    """What a search asks of its model, without the parts that change no translation.

    Attention weights are not recorded; encoder outputs can be kept; and they are put into the
    beams' new order only when sentences have left the batch, since all beams of a sentence read
    the same.
    """

    def __init__(self, model: nn.Module, memory: int):
        super().__init__([model])
        self.keep_encoder = False
        self.memory = memory  # bytes
        self.kept: dict[int, Any] = {}
        self.rows = 0

    def forward_encoder(self, net_input: dict[str, Tensor]) -> Any:
        self.rows = 0
        key = id(net_input)  # the batches live as long as their translator
        if self.keep_encoder and key in self.kept:
            return self.kept[key]
        outputs = super().forward_encoder(net_input)
        if self.keep_encoder and (size := _bytes(outputs)) <= self.memory:
            self.memory -= size
            self.kept[key] = outputs
        return outputs

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> Any:
        if new_order.numel() == self.rows:
            return encoder_outs
        self.rows = new_order.numel()
        return super().reorder_encoder_out(encoder_outs, new_order)

    def forward_decoder(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return super().forward_decoder(*args, **kwargs)[0], None


def _bytes(outputs: Any) -> int:
    sizes = []
    utils.apply_to_sample(lambda x: sizes.append(x.numel() * x.element_size()), {"all": outputs})
    return sum(sizes)


def keep_freed_memory(size: int = 1 << 30) -> None:
    """Let glibc keep memory that tensors of up to ``size`` bytes have freed; do nothing elsewhere.

    A step of a search makes and frees tensors of megabytes. By default their pages go back to the
    system, to be asked for and cleared at the next step: keeping them saves a fifth of the time of
    a translation on a CPU, and changes no result.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, size)
