"""`lite_transformer`: fairseq's encoder-decoder with LSRA layers (Wu et al. 2020, section 4)."""

from typing import Dict, Optional

import torch
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from torch import Tensor, nn

from ..modules.attention import SelfAttention, column_major
from ..modules.output_projection import FEW_ROWS, PackedMatrix
from ..modules.transformer_layer import (
    LiteTransformerDecoderLayer,
    LiteTransformerEncoderLayer,
    wrap_layer,
)
from .flags import add_flags
from .lite_transformer_config import LiteTransformerConfig, lsra_config, to_transformer_config


class LiteTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder; layer i has the i-th kernel size."""

    def __init__(self, cfg, dictionary, embed_tokens, return_fc=False):
        self.layers_built = 0  # fairseq asks for layers without saying which
        super().__init__(cfg, dictionary, embed_tokens, return_fc)

    def build_encoder_layer(self, cfg):
        lsra = lsra_config(cfg, "encoder", self.layers_built)
        self.layers_built += 1
        layer = LiteTransformerEncoderLayer(cfg, lsra, cfg.ffn_fan_out, return_fc=self.return_fc)
        return wrap_layer(layer, cfg)


class LiteTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder; layer i has the i-th kernel size."""

    def __init__(self, cfg, dictionary, embed_tokens, **kwargs):
        self.layers_built = 0
        super().__init__(cfg, dictionary, embed_tokens, **kwargs)
        self.packed = None

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        lsra = lsra_config(cfg, "decoder", self.layers_built)
        self.layers_built += 1
        layer = LiteTransformerDecoderLayer(
            cfg, lsra, cfg.ffn_fan_out, no_encoder_attn=no_encoder_attn
        )
        return wrap_layer(layer, cfg)

    def make_generation_fast_(self, **kwargs):
        """Pack the output projection; fairseq calls this before generation."""
        projection = self.output_projection
        if type(projection) is nn.Linear and projection.bias is None:  # not where fairseq hooks in
            if not projection._forward_pre_hooks and PackedMatrix.fits(projection.weight):
                self.packed = PackedMatrix(projection.weight)

    def output_layer(self, features):
        """Scores of all words; while generating on a CPU, by a faster product."""
        if self.adaptive_softmax is not None:
            return features
        if not torch.jit.is_scripting():
            if self.packed is not None and not torch.is_grad_enabled():
                return self.packed.product(features)
        return self.output_projection(features)

    def reorder_incremental_state_scripting(
        self,
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
        new_order: Tensor,
    ):
        """Follow a beam search; fairseq's own walk over the modules takes 2 to 4 % of its time."""
        if torch.jit.is_scripting():
            for module in self.modules():
                if hasattr(module, "reorder_incremental_state"):
                    module.reorder_incremental_state(incremental_state, new_order)
        else:
            for module in _with_state(self):
                module.reorder_incremental_state(incremental_state, new_order)

    def lay_out_for_few_rows_(self) -> None:
        """Store weights column by column, as a CPU multiplies them fastest with few rows.

        Shapes and values stay; the output projection has its own way.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.output_projection:
                weight = column_major(module.weight.detach())
                module.weight = nn.Parameter(weight, requires_grad=False)
            elif isinstance(module, SelfAttention) and module.fused_weight is not None:
                module.fused_weight = column_major(module.fused_weight)


def _with_state(decoder: nn.Module) -> list[nn.Module]:
    """Modules that can reorder their state, each once."""
    seen, waiting = set(), list(decoder.children())
    found = []
    while waiting:
        module = waiting.pop()
        if module is None or module in seen:
            continue
        seen.add(module)
        waiting.extend(module._modules.values())
        if hasattr(type(module), "reorder_incremental_state"):
            found.append(module)
    return found


@register_model("lite_transformer", dataclass=LiteTransformerConfig)
class LiteTransformerModel(TransformerModelBase):
    """Encoder-decoder whose self-attention is Long-Short Range Attention."""

    @classmethod
    def add_args(cls, parser):
        add_flags(parser, LiteTransformerConfig)

    def prepare_for_inference_(self, cfg) -> None:
        """fairseq's preparation; then, when one sentence is decoded at a time, ours."""
        super().prepare_for_inference_(cfg)
        sentences = cfg.dataset.batch_size
        if sentences is not None and sentences * cfg.generation.beam <= FEW_ROWS:
            self.decoder.lay_out_for_few_rows_()

    @classmethod
    def build_model(cls, cfg, task):
        """Build the model that ``cfg`` describes.

        Raises:
            ValueError: if sizes do not fit together, or embeddings are to be shared between two
                different dictionaries.
        """
        return super().build_model(to_transformer_config(cfg), task)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return LiteTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return LiteTransformerDecoder(cfg, tgt_dict, embed_tokens)
