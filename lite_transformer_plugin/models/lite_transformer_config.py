"""The flags of `lite_transformer`: fairseq's transformer flags, flat, and LSRA's own.

fairseq cannot override nested dataclasses from the command line, so the fields of its
`TransformerConfig` are copied here one level up, with the names its command line gives them.
"""

import dataclasses
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import List, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf

from ..modules.convolution_branch import CONVOLUTIONS
from ..modules.long_short_range_attention import LSRAConfig

# Not offered, because an encoder-decoder of LSRA layers has no use for them: a flag that would
# change nothing is better unknown than ignored.
NOT_OFFERED = {
    "adaptive_input",  # of language models
    "tie_adaptive_weights",  # need an adaptive input
    "tie_adaptive_proj",
    "char_inputs",  # deprecated in fairseq, read by nobody
    "relu_dropout",  # an alias of activation_dropout, kept as such
    "decoder_input_dim",  # fairseq embeds with decoder_embed_dim whatever it says
    "cross_self_attention",  # keys that are not the queries: a convolution has no keys
    "no_cross_attention",  # without the former, the decoder would not see the source
    "encoder_xformers_att_config",  # the global branch has its own attention
    "decoder_xformers_att_config",
    "base_layers",  # sparse expert layers
    "base_sublayers",
    "base_shuffle",
}


KERNELS = (3, 7, 15, 31)  # of the first layers; the last size for all that follow


def flat_config(name: str, config: type, not_offered: set[str]) -> type:
    """A dataclass with the fields of one of fairseq's, flattened, but for those not offered."""
    flat = []
    for outer in fields(config):
        if dataclasses.is_dataclass(outer.type):
            inner = [(f"{outer.name}_{f.name}", f) for f in fields(outer.type)]
        else:
            inner = [(outer.name, outer)]
        for key, f in inner:
            if not key.endswith("_name") and key not in not_offered:
                flat.append((key, f.type, field(default=f.default, metadata=f.metadata)))
    return dataclasses.make_dataclass(name, flat, bases=(FairseqDataclass,))


FlatTransformerConfig = flat_config("FlatTransformerConfig", TransformerConfig, NOT_OFFERED)


def flag(default, help_text: str):
    return field(default=default, metadata={"help": help_text})


@dataclass
class LiteTransformerConfig(FlatTransformerConfig):
    """Every flag of `lite_transformer`."""

    encoder_ffn_embed_dim: Optional[int] = flag(
        None, "channels of the encoder's FFN (default: the embedding size, a flat FFN)"
    )
    encoder_attention_heads: int = flag(4, "heads of the encoder's attention branch (default: 4)")
    encoder_layers_to_keep: Optional[str] = flag(
        None, "which encoder layers to keep when loading, as 0,2,4; name both sides' (default: all)"
    )
    decoder_embed_dim: Optional[int] = flag(
        None, "channels of the decoder (default: as many as the encoder)"
    )
    decoder_ffn_embed_dim: Optional[int] = flag(
        None, "channels of the decoder's FFN (default: the embedding size, a flat FFN)"
    )
    decoder_attention_heads: int = flag(
        4, "heads of the full-width encoder-decoder attention (default: 4)"
    )
    decoder_layers_to_keep: Optional[str] = flag(
        None, "which decoder layers to keep when loading, as 0,2,4; name both sides' (default: all)"
    )
    decoder_output_dim: Optional[int] = flag(
        None, "channels before the output projection (default: the decoder's embedding size)"
    )
    decoder_self_attention_heads: Optional[int] = flag(
        None, "heads of the decoder's attention branch (default: --decoder-attention-heads)"
    )
    encoder_attention_dim: Optional[int] = flag(
        None,
        "channels of the encoder's attention branch (default: what --encoder-conv-dim "
        "leaves, else half the embedding size)",
    )
    encoder_conv_dim: Optional[int] = flag(
        None,
        "channels of the encoder's convolution branch (default: what the attention branch leaves)",
    )
    decoder_attention_dim: Optional[int] = flag(
        None,
        "channels of the decoder's attention branch (default: what --decoder-conv-dim "
        "leaves, else half the embedding size)",
    )
    decoder_conv_dim: Optional[int] = flag(
        None,
        "channels of the decoder's convolution branch (default: what the attention branch leaves)",
    )
    encoder_conv_heads: int = flag(
        4, "groups of channels that share a kernel in the encoder's convolutions (default: 4)"
    )
    decoder_conv_heads: int = flag(
        4, "groups of channels that share a kernel in the decoder's convolutions (default: 4)"
    )
    encoder_conv_type: ChoiceEnum(CONVOLUTIONS) = flag(
        "dynamic", "convolution of the encoder (default: dynamic)"
    )
    decoder_conv_type: ChoiceEnum(CONVOLUTIONS) = flag(
        "dynamic", "convolution of the decoder (default: dynamic)"
    )
    encoder_kernel_size_list: Optional[List[int]] = flag(
        None,
        "kernel size in positions for every encoder layer, as 3,7,15 (default: the first of "
        "3,7,15,31,31,...)",
    )
    decoder_kernel_size_list: Optional[List[int]] = flag(
        None,
        "kernel size in positions for every decoder layer, as 3,7,15 (default: the first of "
        "3,7,15,31,31,...)",
    )
    encoder_glu: bool = flag(True, "gate the input of the encoder's convolutions (default: yes)")
    decoder_glu: bool = flag(True, "gate the input of the decoder's convolutions (default: yes)")
    weight_softmax: bool = flag(True, "normalise the taps of every kernel (default: yes)")
    weight_dropout: float = flag(
        0.0, "probability of dropping a tap of a convolution kernel (default: 0)"
    )
    ffn_fan_out: Optional[float] = flag(
        None,
        "initialise the FFN as if a linear layer had that multiple of its inputs as outputs "
        "(default: its real number of outputs)",
    )


def to_transformer_config(cfg) -> TransformerConfig:
    """Fill in what depends on other flags and nest the result as fairseq's encoder expects it.

    ``cfg`` may be a Namespace, a DictConfig or the dataclass, from the command line or from an
    older checkpoint; missing fields take their defaults. LSRA's flags are nested like the others.

    Raises:
        ValueError: if sizes do not fit together.
    """
    check_known(cfg, LiteTransformerConfig, "lite_transformer")
    flat = filled(cfg, LiteTransformerConfig)
    if flat.decoder_embed_dim is None:
        flat.decoder_embed_dim = flat.encoder_embed_dim
    if flat.decoder_output_dim is None:
        flat.decoder_output_dim = flat.decoder_embed_dim
    flat.decoder_input_dim = flat.decoder_embed_dim
    flat.encoder_self_attention_heads = flat.encoder_attention_heads
    if flat.decoder_self_attention_heads is None:
        flat.decoder_self_attention_heads = flat.decoder_attention_heads
    for side in ("encoder", "decoder"):
        resolve_side(flat, side)
    if bool(flat.encoder_layers_to_keep) != bool(flat.decoder_layers_to_keep):
        raise ValueError(
            "--encoder-layers-to-keep and --decoder-layers-to-keep go together: where one is "
            "missing, fairseq would load none of that side's layers"
        )
    _check_cross_attention(flat)
    _check_output(flat)
    return TransformerConfig.from_namespace(flat)


def filled(cfg, config: type) -> Namespace:
    """Every setting of a dataclass; what ``cfg`` does not say takes its default."""
    found = Namespace()
    for f in fields(config):
        if not f.name.startswith("_"):
            # "${...}" is what another part of fairseq's configuration says
            default = None if str(f.default).startswith("${") else f.default
            setattr(found, f.name, getattr(cfg, f.name, default))
    return found


def check_known(cfg, config: type, model: str) -> None:
    """fairseq merges the keys of a named architecture unseen, also misspelt ones."""
    known = {f.name for f in fields(config)} | {"arch"}
    unknown = sorted(set(cfg) - known) if OmegaConf.is_config(cfg) else []
    if unknown:
        raise ValueError(
            f"{model} has no setting {', '.join(unknown)}: misspelt, or written by a "
            "newer version of the plugin"
        )


def resolve_side(flat: Namespace, side: str, kernels: Sequence[int] = KERNELS) -> None:
    """Fill in and check the sizes of ``encoder`` or ``decoder``."""

    def get(name):
        return getattr(flat, f"{side}_{name}")

    embed_dim = get("embed_dim")
    if get("ffn_embed_dim") is None:
        setattr(flat, f"{side}_ffn_embed_dim", embed_dim)
    for name in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "conv_heads"):
        if get(name) < 1:
            flag = f"--{side}-{name.replace('_', '-')}"
            raise ValueError(f"{flag} ({get(name)}) must be at least 1")
    attention_dim, conv_dim = branch_widths(side, embed_dim, get("attention_dim"), get("conv_dim"))
    setattr(flat, f"{side}_attention_dim", attention_dim)
    setattr(flat, f"{side}_conv_dim", conv_dim)
    sizes = kernel_sizes(side, get("layers"), get("kernel_size_list"), kernels)
    kept = _kept_layers(side, get("layers"), get("layers_to_keep"))
    setattr(flat, f"{side}_kernel_size_list", [sizes[i] for i in kept])


def _kept_layers(side: str, layers: int, to_keep: Optional[str]) -> List[int]:
    if not to_keep:
        return list(range(layers))
    kept = sorted(int(i) if i.strip().isdigit() else layers for i in to_keep.split(","))
    if kept[-1] >= layers:
        raise ValueError(
            f"--{side}-layers-to-keep ({to_keep}) must name layers from 0 to {layers - 1}, as 0,2"
        )
    return kept


def branch_widths(
    side: str, embed_dim: int, attention_dim: Optional[int], conv_dim: Optional[int]
) -> tuple[int, int]:
    """Channels of the global and the local branch: half each, or what the other one leaves."""
    if attention_dim is None and conv_dim is None:
        if embed_dim % 2:
            raise ValueError(
                f"--{side}-embed-dim ({embed_dim}) must be even: LSRA gives half to each branch; "
                f"or give --{side}-attention-dim"
            )
        return embed_dim // 2, embed_dim // 2
    if attention_dim is None:
        attention_dim = embed_dim - conv_dim
    if conv_dim is None:
        conv_dim = embed_dim - attention_dim
    if min(attention_dim, conv_dim) < 1 or attention_dim + conv_dim != embed_dim:
        raise ValueError(
            f"--{side}-attention-dim ({attention_dim}) and --{side}-conv-dim ({conv_dim}) must be "
            f"positive and add up to --{side}-embed-dim ({embed_dim})"
        )
    return attention_dim, conv_dim


def kernel_sizes(
    side: str, layers: int, given: Optional[List[int]], usual: Sequence[int] = KERNELS
) -> List[int]:
    """The kernel size of every layer; not given, the usual ones, the last again and again."""
    if given is None:
        return (list(usual) + [usual[-1]] * layers)[:layers]
    if len(given) != layers:
        raise ValueError(
            f"--{side}-kernel-size-list has {len(given)} sizes ({','.join(map(str, given))}) for "
            f"{layers} layers: give one size for every layer"
        )
    if min(given) < 1:
        raise ValueError(f"--{side}-kernel-size-list ({given}): sizes must be at least 1")
    return list(given)


def _check_cross_attention(flat: Namespace) -> None:
    if flat.decoder_embed_dim % flat.decoder_attention_heads:
        raise ValueError(
            f"--decoder-attention-heads ({flat.decoder_attention_heads}) must divide "
            f"--decoder-embed-dim ({flat.decoder_embed_dim}), the width of the encoder-decoder "
            "attention"
        )


def _check_output(flat: Namespace) -> None:
    tied = flat.share_all_embeddings or flat.share_decoder_input_output_embed
    if tied and flat.decoder_output_dim != flat.decoder_embed_dim:
        raise ValueError(
            f"--decoder-output-dim ({flat.decoder_output_dim}) must equal --decoder-embed-dim "
            f"({flat.decoder_embed_dim}) when input and output embeddings are shared"
        )


def lsra_config(cfg: TransformerConfig, side: str, layer: int) -> LSRAConfig:
    """Sizes of the LSRA module in one layer (counted from 0) of ``encoder`` or ``decoder``."""
    sizes = getattr(cfg, side)  # fairseq nests every flat name that starts with a side
    return LSRAConfig(
        attention_dim=sizes.attention_dim,
        conv_dim=sizes.conv_dim,
        attention_heads=sizes.self_attention_heads,
        conv_heads=sizes.conv_heads,
        kernel_size=sizes.kernel_size_list[layer],
        conv_type=str(sizes.conv_type),
        glu=sizes.glu,
        causal=side == "decoder",
        weight_softmax=cfg.weight_softmax,
        weight_dropout=cfg.weight_dropout,
        attention_dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
    )
