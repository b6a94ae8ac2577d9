"""Every named architecture as a row of one table; a row states only what differs from defaults.

Sources: the configurations of the Lite Transformer's authors, and for the baselines the sizes
their paper prints (Wu et al. 2020, tables 1 to 3 and figure 4), found again by counting.
"""

from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture
from hydra.core.config_store import ConfigStore

from .lite_transformer import LiteTransformerConfig  # registers the model
from .lite_transformer_lm import LiteTransformerLMConfig

LIGHTWEIGHT = dict(
    encoder_conv_type="lightweight",
    decoder_conv_type="lightweight",
    encoder_glu=False,
    decoder_glu=False,
)
LITE_IWSLT = dict(**LIGHTWEIGHT, dropout=0.2, weight_dropout=0.1, ffn_fan_out=2.0)
LITE_SHARED = dict(
    decoder_attention_heads=8, decoder_self_attention_heads=4, share_all_embeddings=True
)
BASE_IWSLT = dict(encoder_attention_heads=4, decoder_attention_heads=4)
BASE_WMT = dict(share_all_embeddings=True)


def _noise(dropout: float, attention_dropout: float, weight_dropout: float) -> dict:
    return dict(dropout=dropout, attention_dropout=attention_dropout, weight_dropout=weight_dropout)


LITE_TRANSFORMER = {
    "lite_transformer_iwslt_de_en_160": dict(encoder_embed_dim=160, **LITE_IWSLT),
    "lite_transformer_iwslt_de_en_240": dict(encoder_embed_dim=240, **LITE_IWSLT),
    "lite_transformer_iwslt_de_en_320": dict(encoder_embed_dim=320, **LITE_IWSLT),
    "lite_transformer_wmt_en_de_200": dict(
        encoder_embed_dim=200, **LITE_SHARED, **_noise(0.04, 0.03, 0.03)
    ),
    "lite_transformer_wmt_en_de_408": dict(
        encoder_embed_dim=408, **LITE_SHARED, **_noise(0.08, 0.06, 0.06)
    ),
    "lite_transformer_wmt_en_de_496": dict(
        encoder_embed_dim=496, **LITE_SHARED, **_noise(0.1, 0.08, 0.08)
    ),
    "lite_transformer_wmt_en_fr_200": dict(
        encoder_embed_dim=200, **LITE_SHARED, **_noise(0.04, 0.03, 0.03)
    ),
    "lite_transformer_wmt_en_fr_408": dict(
        encoder_embed_dim=408, **LITE_SHARED, **_noise(0.08, 0.07, 0.07)
    ),
    "lite_transformer_wmt_en_fr_496": dict(
        encoder_embed_dim=496, **LITE_SHARED, **_noise(0.1, 0.08, 0.08)
    ),
    "lite_transformer_cnn_dm": dict(encoder_embed_dim=496, **LITE_SHARED, **_noise(0.15, 0.1, 0.1)),
    "lite_transformer_quickstart": dict(
        encoder_embed_dim=160,
        encoder_layers=3,
        decoder_layers=3,
        encoder_kernel_size_list=[3, 15, 31],
        decoder_kernel_size_list=[3, 15, 31],
        share_all_embeddings=True,
    ),
}


def _transformer(embed_dim: int, ffn_embed_dim: int, **more) -> dict:
    return dict(encoder_embed_dim=embed_dim, encoder_ffn_embed_dim=ffn_embed_dim, **more)


TRANSFORMER = {
    "transformer_iwslt_de_en_128": _transformer(128, 256, **BASE_IWSLT),
    "transformer_iwslt_de_en_192": _transformer(192, 384, **BASE_IWSLT),
    "transformer_iwslt_de_en_240": _transformer(240, 480, **BASE_IWSLT),
    "transformer_wmt_128": _transformer(128, 512, **BASE_WMT),
    "transformer_wmt_256": _transformer(256, 1024, **BASE_WMT),
    "transformer_wmt_320": _transformer(320, 1280, **BASE_WMT),
    "transformer_quickstart": _transformer(
        104, 416, encoder_layers=3, decoder_layers=3, **BASE_IWSLT, **BASE_WMT
    ),
}


# Set whatever the command line says: fairseq's parser fills in "dynamic" before an architecture is
# asked, so a choice cannot be told from the default.
CONV_TYPES = dict(encoder_conv_type="lightweight", decoder_conv_type="lightweight")


def _lightconv(embed_dim: int) -> dict:
    return dict(
        encoder_embed_dim=embed_dim,
        encoder_ffn_embed_dim=2 * embed_dim,
        decoder_embed_dim=embed_dim,
        decoder_ffn_embed_dim=2 * embed_dim,
        weight_softmax=True,
        **CONV_TYPES,
    )


# The paper prints 52, 115 and 204M Mult-Adds, not the sizes: these give 51.5, 114.9 and 203.3M.
LIGHTCONV = {
    "lightconv_iwslt_de_en_128": _lightconv(128),
    "lightconv_iwslt_de_en_192": _lightconv(192),
    "lightconv_iwslt_de_en_256": _lightconv(256),
}

# Adaptive input and softmax, their weights and projections tied (Baevski and Auli 2019).
ADAPTIVE = dict(
    adaptive_input=True,
    adaptive_input_cutoff="20000,60000",
    adaptive_softmax_cutoff="20000,60000",
    tie_adaptive_weights=True,
    tie_adaptive_proj=True,
)
LITE_TRANSFORMER_LM = {
    "lite_transformer_lm_wiki103": dict(
        decoder_embed_dim=896, no_decoder_final_norm=True, **ADAPTIVE, **_noise(0.21, 0.14, 0.14)
    ),
    "lite_transformer_lm_small": dict(
        decoder_embed_dim=192, decoder_layers=6, share_decoder_input_output_embed=True
    ),
}
TRANSFORMER_LM = {
    "transformer_lm_wiki103_512": dict(
        decoder_embed_dim=512,
        decoder_ffn_embed_dim=2048,
        decoder_layers=12,
        decoder_attention_heads=8,
        no_decoder_final_norm=True,
        dropout=0.3,  # noise as in fairseq's transformer_lm_wiki103
        attention_dropout=0.1,
        activation_dropout=0.1,
        adaptive_softmax_dropout=0.2,
        **ADAPTIVE,
    ),
    "transformer_lm_small": dict(
        decoder_embed_dim=112,
        decoder_ffn_embed_dim=448,
        decoder_layers=6,
        decoder_attention_heads=4,
        share_decoder_input_output_embed=True,
    ),
}

# model -> its rows, the architecture that fills in what a row leaves open, what is not negotiable
TABLE = {
    "lite_transformer": (LITE_TRANSFORMER, "lite_transformer", {}),
    "transformer": (TRANSFORMER, "transformer", {}),
    "lightconv": (LIGHTCONV, "lightconv_iwslt_de_en", CONV_TYPES),
    "lite_transformer_lm": (LITE_TRANSFORMER_LM, "lite_transformer_lm", {}),
    "transformer_lm": (TRANSFORMER_LM, "transformer_lm_big", {}),
}


CONFIGS = {
    "lite_transformer": LiteTransformerConfig,
    "lite_transformer_lm": LiteTransformerLMConfig,
}


def _architecture(row: dict, base: str, fixed: dict):
    def fill(args) -> None:
        for name, value in row.items():
            if name in fixed or not hasattr(args, name):
                setattr(args, name, value)
        ARCH_CONFIG_REGISTRY[base](args)

    return fill


def _hydra_node(model: str, name: str, row: dict) -> FairseqDataclass | dict:
    if model in CONFIGS:
        node = CONFIGS[model](**row)
        node._name = name
        return node
    if model == "transformer_lm":  # on the command line the architecture sees to it
        size = row["decoder_embed_dim"]
        row = dict(decoder_input_dim=size, decoder_output_dim=size, **row)
    return dict(_name=name, **row)  # fairseq fills the rest from the architecture


for _model, (_rows, _base, _fixed) in TABLE.items():
    for _name, _row in _rows.items():
        register_model_architecture(_model, _name)(_architecture(_row, _base, _fixed))
        ConfigStore.instance().store(
            name=_name, group="model", node=_hydra_node(_model, _name, _row), provider="lite"
        )
