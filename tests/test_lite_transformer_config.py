"""No flag is silently ignored: each one changes the built model, on both kinds of command line."""

import functools
import json
from dataclasses import fields

import pytest
import torch
from conftest import TINY, dictionary, parse_model, stub_task
from fairseq import models
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.models.transformer import transformer_decoder, transformer_encoder
from fairseq.modules import transformer_layer as stock_layer
from fairseq.quantization_utils import quantize_model_scalar
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from lite_transformer_plugin.models import lite_transformer_config, presets
from lite_transformer_plugin.models.lite_transformer_config import (
    NOT_OFFERED,
    LiteTransformerConfig,
    kernel_sizes,
)
from lite_transformer_plugin.modules import transformer_layer

BASE = dict(encoder_embed_dim=16, encoder_layers=2, decoder_layers=2)
# flag -> (value, what else must be set for it to mean anything)
CHANGES = {
    "activation_fn": ("gelu", {}),
    "dropout": (0.3, {}),
    "attention_dropout": (0.3, {}),
    "activation_dropout": (0.3, {}),
    "encoder_embed_path": ("EMBEDDINGS", {}),
    "encoder_embed_dim": (24, {}),
    "encoder_ffn_embed_dim": (20, {}),
    "encoder_layers": (3, {}),
    "encoder_attention_heads": (2, {}),
    "encoder_normalize_before": (True, {}),
    "encoder_learned_pos": (True, {}),
    "encoder_layerdrop": (0.2, {}),
    "encoder_layers_to_keep": ("1", {"decoder_layers_to_keep": "0", "encoder_layers_to_keep": "0"}),
    "max_source_positions": (77, {}),
    "decoder_embed_path": ("EMBEDDINGS", {}),
    "decoder_embed_dim": (24, {}),
    "decoder_ffn_embed_dim": (20, {}),
    "decoder_layers": (3, {}),
    "decoder_attention_heads": (2, {}),
    "decoder_normalize_before": (True, {}),
    "decoder_learned_pos": (True, {}),
    "decoder_layerdrop": (0.2, {}),
    "decoder_layers_to_keep": ("1", {"decoder_layers_to_keep": "0", "encoder_layers_to_keep": "0"}),
    "decoder_output_dim": (12, {}),
    "max_target_positions": (77, {}),
    "share_decoder_input_output_embed": (True, {}),
    "share_all_embeddings": (True, {}),
    "merge_src_tgt_embed": (True, {}),
    "no_token_positional_embeddings": (True, {}),
    "adaptive_softmax_cutoff": ([8, 16], {}),
    "adaptive_softmax_dropout": (0.3, {"adaptive_softmax_cutoff": [8, 16]}),
    "adaptive_softmax_factor": (2.0, {"adaptive_softmax_cutoff": [8, 16]}),
    "layernorm_embedding": (True, {}),
    "no_scale_embedding": (True, {}),
    "checkpoint_activations": (True, {}),
    "offload_activations": (True, {"checkpoint_activations": True}),
    "quant_noise_pq": (0.1, {}),
    "quant_noise_pq_block_size": (4, {"quant_noise_pq": 0.1}),
    "quant_noise_scalar": (0.1, {}),
    "min_params_to_wrap": (1234, {}),
    "export": (True, {}),
    "no_decoder_final_norm": (True, {"decoder_normalize_before": True}),
    "decoder_self_attention_heads": (2, {}),
    "encoder_attention_dim": (12, {}),
    "encoder_conv_dim": (12, {}),
    "decoder_attention_dim": (12, {}),
    "decoder_conv_dim": (12, {}),
    "encoder_conv_heads": (2, {}),
    "decoder_conv_heads": (2, {}),
    "encoder_conv_type": ("lightweight", {}),
    "decoder_conv_type": ("lightweight", {}),
    "encoder_kernel_size_list": ([4, 5], {}),
    "decoder_kernel_size_list": ([4, 5], {}),
    "encoder_glu": (False, {}),
    "decoder_glu": (False, {}),
    "weight_softmax": (False, {}),
    "weight_dropout": (0.3, {}),
    "ffn_fan_out": (3.0, {}),
}
FLAGS = [f.name for f in fields(LiteTransformerConfig) if not f.name.startswith("_")]


def command_line(settings: dict) -> list[str]:
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words += ["--" + flag if value else "--no-" + flag]
        elif isinstance(value, list):
            words += ["--" + flag, ",".join(map(str, value))]
        else:
            words += ["--" + flag, str(value)]
    return words


def from_command_line(settings: dict, arch: str = "lite_transformer"):
    """As fairseq-train makes it."""
    return parse_model("--arch", arch, *command_line(settings))


def from_hydra(settings: dict, arch: str = "lite_transformer", *others: str):
    """As fairseq-hydra-train makes it."""
    overrides = [f"model={arch}", *others]
    for name, value in settings.items():
        overrides.append(
            f"model.{name}='{value}'"
            if isinstance(value, str)
            else f"model.{name}={str(value).lower()}"
        )
    GlobalHydra.instance().clear()
    with initialize_config_module("fairseq.config", version_base="1.1"):
        hydra_init("config")
        cfg = compose("config", overrides=overrides)
    add_defaults(cfg)
    return cfg.model


@functools.cache
def base_fingerprint(make, context: str) -> dict:
    return fingerprint(make(BASE | json.loads(context)))


def fingerprint(cfg) -> dict:
    """Everything visible of a built model: modules, settings, shapes, values, wrapping."""
    facts = {}

    def spy(owner, name, keyword):
        original = getattr(owner, name)

        def recorded(*args, **kwargs):
            facts.setdefault(f"{name}.{keyword}", []).append(kwargs.get(keyword))
            return original(*args, **kwargs)

        patch.setattr(owner, name, recorded)

    with pytest.MonkeyPatch.context() as patch:
        spy(transformer_layer, "fsdp_wrap", "min_num_params")
        for owner in (stock_layer, transformer_encoder, transformer_decoder):
            spy(owner, "LayerNorm", "export")
        torch.manual_seed(1)
        model = models.build_model(cfg, stub_task(dictionary(), dictionary()))
        model = quantize_model_scalar(model, cfg)
    for name, module in model.named_modules():
        facts[name] = type(module).__name__
        for key, value in vars(module).items():
            if isinstance(value, functools.partial):  # activation checkpointing
                facts[f"{name}.{key}"] = [a for a in value.args if isinstance(a, bool)]
            elif callable(value):
                facts[f"{name}.{key}"] = getattr(value, "__qualname__", None)
            elif isinstance(value, (int, float, str)) and not key.startswith("_incremental"):
                facts[f"{name}.{key}"] = value
    for name, p in model.named_parameters():
        facts["value of " + name] = (tuple(p.shape), p.double().sum().item())
    return facts


def test_every_flag_has_a_case():
    assert sorted(CHANGES) == sorted(FLAGS)


@pytest.mark.parametrize("make", [from_command_line, from_hydra])
@pytest.mark.parametrize("flag", FLAGS)
def test_no_flag_is_ignored(flag, make, tmp_path):
    value, context = CHANGES[flag]
    if value == "EMBEDDINGS":
        value = tmp_path / "vectors.txt"
        value.write_text("1 16\nw3 " + " ".join(["0.5"] * 16) + "\n")
        value = str(value)
    after = fingerprint(make(BASE | context | {flag: value}))
    assert after != base_fingerprint(make, json.dumps(context))


@pytest.mark.parametrize("flag", sorted(NOT_OFFERED - {"relu_dropout"}))
def test_flags_without_meaning_are_unknown(flag, capsys):
    with pytest.raises(SystemExit) as error:
        from_command_line({flag: True})
    assert error.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_misspelt_hydra_settings_are_refused():
    for name in ("lite_transformer", "lite_transformer_iwslt_de_en_160"):
        cfg = from_hydra({}, name)
        with pytest.raises(Exception, match="encoder_emb"):
            cfg.encoder_emb = 3
    GlobalHydra.instance().clear()
    with initialize_config_module("fairseq.config", version_base="1.1"):
        cfg = compose(
            "config",
            overrides=["+model._name=lite_transformer_iwslt_de_en_160", "+model.encoder_emb=3"],
        )
    with pytest.raises(ValueError, match="no setting encoder_emb"):
        models.build_model(cfg.model, stub_task(dictionary()))


@pytest.mark.parametrize("name", presets.LITE_TRANSFORMER)
def test_presets_are_the_same_through_hydra(name):
    assert fingerprint(from_command_line({}, name)) == fingerprint(from_hydra({}, name))


@pytest.mark.parametrize("name", [*presets.TRANSFORMER, *presets.LIGHTCONV])
def test_baselines_are_the_same_through_hydra(name):
    counts = set()
    for cfg in (from_command_line({}, name), from_hydra({}, name)):
        model = models.build_model(cfg, stub_task(dictionary()))
        counts.add((type(model).__name__, sum(p.numel() for p in model.parameters())))
    assert len(counts) == 1


def test_an_architecture_can_be_overridden_both_ways():
    cfg = from_command_line(dict(share_all_embeddings=False), "lite_transformer_wmt_en_de_200")
    assert cfg.share_all_embeddings is False
    assert cfg.decoder_attention_heads == 8
    cfg = from_command_line(dict(encoder_glu=True), "lite_transformer_iwslt_de_en_160")
    assert (cfg.encoder_glu, cfg.decoder_glu) == (True, False)


def test_help_names_every_own_flag_with_its_default(capsys):
    with pytest.raises(SystemExit):
        parse_model("--arch", "lite_transformer", "--help")
    shown = "".join(capsys.readouterr().out.split())
    own = {"encoder_ffn_embed_dim", "encoder_attention_heads", "decoder_attention_heads"}
    stock = {f.name for f in fields(lite_transformer_config.FlatTransformerConfig)}
    for name in own | (set(FLAGS) - stock):
        help_text = LiteTransformerConfig.__dataclass_fields__[name].metadata["help"]
        assert "--" + name.replace("_", "-") in shown
        assert "".join(help_text.split()) in shown
        assert "(default: " in help_text


def test_default_kernel_sizes_fit_any_depth():
    assert kernel_sizes("encoder", 1, None) == [3]
    assert kernel_sizes("encoder", 6, None) == [3, 7, 15, 31, 31, 31]
    assert kernel_sizes("encoder", 8, None) == [3, 7, 15, 31, 31, 31, 31, 31]


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(encoder_embed_dim=15), r"--encoder-embed-dim \(15\) must be even"),
        (dict(decoder_embed_dim=15), r"--decoder-embed-dim \(15\) must be even"),
        (dict(encoder_embed_dim=-4), r"--encoder-embed-dim \(-4\) must be at least 1"),
        (dict(encoder_embed_dim=0), r"--encoder-embed-dim \(0\) must be at least 1"),
        (dict(decoder_layers=0), r"--decoder-layers \(0\) must be at least 1"),
        (dict(encoder_ffn_embed_dim=-1), r"--encoder-ffn-embed-dim \(-1\) must be at least 1"),
        (dict(encoder_attention_dim=9, encoder_conv_dim=8), r"add up to --encoder-embed-dim \(16"),
        (dict(decoder_attention_dim=16), r"--decoder-conv-dim \(0\) must be positive"),
        (dict(encoder_attention_heads=3), "3 attention heads do not divide the 8 channels"),
        (dict(decoder_self_attention_heads=3), "3 attention heads do not divide the 8 channels"),
        (dict(decoder_attention_heads=3), r"--decoder-attention-heads \(3\) must divide"),
        (dict(encoder_conv_heads=3), "3 convolution heads do not divide the 8 channels"),
        (dict(encoder_kernel_size_list=[3]), r"has 1 sizes \(3\) for 2 layers"),
        (dict(decoder_kernel_size_list=[3, 0]), "sizes must be at least 1"),
        (dict(encoder_layers_to_keep="0,5"), "--encoder-layers-to-keep .0,5. must name"),
        (dict(encoder_layers_to_keep="one"), "--encoder-layers-to-keep .one. must name"),
        (dict(encoder_layers_to_keep="0"), "and --decoder-layers-to-keep go together"),
        (
            dict(decoder_output_dim=8, share_all_embeddings=True),
            r"--decoder-output-dim \(8\) must equal --decoder-embed-dim \(16\)",
        ),
    ],
)
def test_sizes_that_do_not_fit_give_one_clear_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        models.build_model(from_command_line(BASE | settings), stub_task(dictionary()))
    assert "\n" not in str(error.value)


def test_an_unknown_convolution_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        from_command_line(dict(encoder_conv_type="depthwise"))
    assert error.value.code == 2
    assert "invalid choice: 'depthwise'" in capsys.readouterr().err


def test_sharing_needs_one_dictionary():
    cfg = parse_model("--arch", "lite_transformer", *TINY, "--share-all-embeddings")
    with pytest.raises(ValueError, match="joined dictionary"):
        models.build_model(cfg, stub_task(dictionary(20), dictionary(21)))
