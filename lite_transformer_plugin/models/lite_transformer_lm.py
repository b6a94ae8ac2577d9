"""`lite_transformer_lm`: fairseq's language model with LSRA layers (Wu et al. 2020, section 6).

A decoder without encoder: causal LSRA and FFN, each behind its layer norm. Words are embedded by a
table or by an adaptive input, and predicted by a matrix or by an adaptive softmax.
"""

from dataclasses import dataclass
from typing import List, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from fairseq.modules import AdaptiveInput

from ..modules.convolution_branch import CONVOLUTIONS
from ..modules.output_projection import FEW_ROWS
from .flags import add_flags
from .lite_transformer import LiteTransformerDecoder
from .lite_transformer_config import check_known, filled, flag, flat_config, resolve_side

KERNELS = (15, 15, 31, 31, 31, 31, 63)  # of the first layers; the last size for all that follow
NOT_OFFERED = {
    "relu_dropout",  # an alias of activation_dropout that transformer_lm does not read
    "character_embeddings",  # words only
    "character_filters",
    "character_embedding_dim",
    "char_embedder_highway_layers",
    "decoder_xformers_att_config",  # the global branch has its own attention
    "base_layers",  # sparse expert layers
    "base_sublayers",
    "base_shuffle",
    "scale_heads",  # LSRA's heads hold half of the channels
}
FlatLanguageModelConfig = flat_config(
    "FlatLanguageModelConfig", TransformerLanguageModelConfig, NOT_OFFERED
)


@dataclass
class LiteTransformerLMConfig(FlatLanguageModelConfig):
    """Every flag of `lite_transformer_lm`."""

    decoder_ffn_embed_dim: Optional[int] = flag(
        None, "channels of the FFN (default: the embedding size, a flat FFN)"
    )
    decoder_input_dim: Optional[int] = flag(
        None, "channels of the embeddings (default: --decoder-embed-dim)"
    )
    decoder_output_dim: Optional[int] = flag(
        None, "channels before the output projection (default: --decoder-embed-dim)"
    )
    decoder_layers: int = flag(12, "layers (default: 12)")
    decoder_attention_heads: int = flag(4, "heads of the attention branch (default: 4)")
    decoder_normalize_before: bool = flag(
        True, "layer norms before attention and FFN; training needs it (default: yes)"
    )
    decoder_attention_dim: Optional[int] = flag(
        None,
        "channels of the attention branch (default: what --decoder-conv-dim leaves, else half the "
        "embedding size)",
    )
    decoder_conv_dim: Optional[int] = flag(
        None, "channels of the convolution branch (default: what the attention branch leaves)"
    )
    decoder_conv_heads: int = flag(
        4, "groups of channels that share a kernel in the convolutions (default: 4)"
    )
    decoder_conv_type: ChoiceEnum(CONVOLUTIONS) = flag(
        "dynamic", "convolution of the local branch (default: dynamic)"
    )
    decoder_kernel_size_list: Optional[List[int]] = flag(
        None,
        "kernel size in positions for every layer, as 15,31,63 (default: the first of "
        "15,15,31,31,31,31,63,63,...)",
    )
    decoder_glu: bool = flag(True, "gate the input of the convolutions (default: yes)")
    weight_softmax: bool = flag(True, "normalise the taps of every kernel (default: yes)")
    weight_dropout: float = flag(
        0.0, "probability of dropping a tap of a convolution kernel (default: 0)"
    )
    ffn_fan_out: Optional[float] = flag(
        None,
        "initialise the FFN as if a linear layer had that multiple of its inputs as outputs "
        "(default: its real number of outputs)",
    )


def to_decoder_config(cfg, vocabulary: int) -> TransformerConfig:
    """Fill in what depends on other flags and nest the result as fairseq's decoder expects it.

    Args:
        cfg: a Namespace, a DictConfig or the dataclass; missing fields take their defaults.
        vocabulary: entries of the dictionary.

    Raises:
        ValueError: if sizes, cutoffs or ties do not fit together.
    """
    check_known(cfg, LiteTransformerLMConfig, "lite_transformer_lm")
    flat = filled(cfg, LiteTransformerLMConfig)
    if flat.max_target_positions is None:
        flat.max_target_positions = flat.tokens_per_sample or DEFAULT_MAX_TARGET_POSITIONS
    for side in ("input", "output"):
        if getattr(flat, f"decoder_{side}_dim") is None:
            setattr(flat, f"decoder_{side}_dim", flat.decoder_embed_dim)
    flat.decoder_self_attention_heads = flat.decoder_attention_heads
    resolve_side(flat, "decoder", KERNELS)
    for side, used in (("input", flat.adaptive_input), ("softmax", True)):
        _check_cutoffs(side, getattr(flat, f"adaptive_{side}_cutoff"), vocabulary, used)
    _check_ties(flat)
    return TransformerConfig.from_namespace(flat)


def _check_cutoffs(side: str, given: Optional[str], vocabulary: int, used: bool) -> None:
    name = f"--adaptive-{side}-cutoff"
    if given is None:
        if side == "input" and used:
            raise ValueError(f"--adaptive-input needs {name}, as 20000,60000")
        return
    cutoffs = utils.eval_str_list(given, type=int)
    if cutoffs != sorted(set(cutoffs)) or cutoffs[0] < 1:
        raise ValueError(f"{name} ({given}) must grow, from 1 at least, as 20000,60000")
    if cutoffs[-1] > vocabulary:
        raise ValueError(
            f"{name} ({given}) goes beyond the {vocabulary} entries of the dictionary: choose "
            "smaller cutoffs"
        )


def _check_ties(flat) -> None:
    if flat.tie_adaptive_weights:
        if not flat.adaptive_input or flat.adaptive_softmax_cutoff is None:
            raise ValueError(
                "--tie-adaptive-weights needs --adaptive-input and --adaptive-softmax-cutoff"
            )
        for name in ("cutoff", "factor"):
            pair = [getattr(flat, f"adaptive_{side}_{name}") for side in ("input", "softmax")]
            if pair[0] != pair[1]:
                raise ValueError(
                    f"--tie-adaptive-weights: --adaptive-input-{name} ({pair[0]}) and "
                    f"--adaptive-softmax-{name} ({pair[1]}) must be equal"
                )
    elif flat.tie_adaptive_proj:
        raise ValueError("--tie-adaptive-proj needs --tie-adaptive-weights")
    tied = flat.share_decoder_input_output_embed or flat.tie_adaptive_weights
    if tied and flat.decoder_input_dim != flat.decoder_output_dim:
        raise ValueError(
            f"--decoder-input-dim ({flat.decoder_input_dim}) must equal --decoder-output-dim "
            f"({flat.decoder_output_dim}) when input and output share their weights"
        )
    if flat.share_decoder_input_output_embed and flat.adaptive_input:
        raise ValueError(
            "--share-decoder-input-output-embed shares a table; of an --adaptive-input, "
            "--tie-adaptive-weights does"
        )


@register_model("lite_transformer_lm", dataclass=LiteTransformerLMConfig)
class LiteTransformerLanguageModel(TransformerLanguageModel):
    """Decoder-only language model whose self-attention is Long-Short Range Attention."""

    @classmethod
    def add_args(cls, parser):
        add_flags(parser, LiteTransformerLMConfig)

    @classmethod
    def build_model(cls, cfg, task):
        """Build the model that ``cfg`` describes.

        Raises:
            ValueError: if sizes do not fit together, or cutoffs go beyond the dictionary.
        """
        nested = to_decoder_config(cfg, len(task.source_dictionary))
        words = cls._embedded(nested, task.source_dictionary)
        decoder = LiteTransformerDecoder(
            nested, task.target_dictionary, words, no_encoder_attn=True
        )
        return cls(decoder)

    @classmethod
    def _embedded(cls, cfg: TransformerConfig, dictionary):
        if not cfg.adaptive_input:
            return cls.build_embedding(cfg, dictionary, cfg.decoder.input_dim)
        return AdaptiveInput(
            len(dictionary),
            dictionary.pad(),
            cfg.decoder.input_dim,
            cfg.adaptive_input_factor,
            cfg.decoder.embed_dim,
            utils.eval_str_list(cfg.adaptive_input_cutoff, type=int),
            cfg.quant_noise.pq,
            cfg.quant_noise.pq_block_size,
        )

    def prepare_for_inference_(self, cfg) -> None:
        """fairseq's preparation; then, when one text is continued at a time, ours."""
        super().prepare_for_inference_(cfg)
        texts = cfg.dataset.batch_size
        if texts is not None and texts * cfg.generation.beam <= FEW_ROWS:
            self.decoder.lay_out_for_few_rows_()
