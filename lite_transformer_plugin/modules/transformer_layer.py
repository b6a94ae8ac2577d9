"""fairseq's transformer layers with self-attention replaced by LSRA; the rest is inherited."""

import math

from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from .cross_attention import CrossAttention
from .long_short_range_attention import LongShortRangeAttention, LSRAConfig


class FlatFFN:
    """Xavier initialisation of a layer's FFN, as in the authors' code.

    ``ffn_fan_out`` counts that multiple of a linear layer's input size as its fan-out; None
    counts the real one.
    """

    ffn_fan_out: float | None = None

    def build_fc1(self, input_dim, output_dim, q_noise, qn_block_size):
        return self._initialised(super().build_fc1(input_dim, output_dim, q_noise, qn_block_size))

    def build_fc2(self, input_dim, output_dim, q_noise, qn_block_size):
        return self._initialised(super().build_fc2(input_dim, output_dim, q_noise, qn_block_size))

    def _initialised(self, layer: nn.Linear) -> nn.Linear:
        fan_in, fan_out = layer.in_features, layer.out_features
        if self.ffn_fan_out is not None:
            fan_out = self.ffn_fan_out * fan_in
        bound = math.sqrt(6 / (fan_in + fan_out))
        nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.zeros_(layer.bias)
        return layer


class LiteTransformerEncoderLayer(FlatFFN, TransformerEncoderLayerBase):
    """Encoder layer: LSRA -> FFN, in fairseq's order of residuals and norms."""

    def __init__(self, cfg, lsra: LSRAConfig, ffn_fan_out: float | None = None, **kwargs):
        self.lsra = lsra
        self.ffn_fan_out = ffn_fan_out
        super().__init__(cfg, **kwargs)

    def build_self_attention(self, embed_dim, cfg):
        return LongShortRangeAttention(self.lsra)


class LiteTransformerDecoderLayer(FlatFFN, TransformerDecoderLayerBase):
    """Decoder layer: causal LSRA -> plain encoder-decoder attention -> FFN."""

    def __init__(self, cfg, lsra: LSRAConfig, ffn_fan_out: float | None = None, **kwargs):
        self.lsra = lsra
        self.ffn_fan_out = ffn_fan_out
        super().__init__(cfg, **kwargs)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        return LongShortRangeAttention(self.lsra)

    def build_encoder_attention(self, embed_dim, cfg):
        return CrossAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )


def wrap_layer(layer: nn.Module, cfg) -> nn.Module:
    """Apply the activation checkpointing and FSDP wrapping that fairseq's builders apply."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0)
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
