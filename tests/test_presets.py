"""Every named architecture builds, and has the parameters that its paper counts."""

import pytest
import torch
from conftest import dictionary, parse_model, stub_task
from fairseq.models import build_model
from test_lite_transformer_config import from_hydra

from lite_transformer_plugin.models import presets

WIKITEXT_WORDS = 60_010  # more than the last cutoff
IWSLT_WORDS = 6632  # the vocabulary behind the published counts
# Millions of parameters: without embeddings for WMT and CNN/DM, whose output is tied; with the
# output projection for IWSLT, as printed there.
PUBLISHED = {
    "transformer_wmt_128": "2.78",
    "transformer_wmt_256": "11.06",
    "transformer_wmt_320": "17.26",
    "lite_transformer_wmt_en_de_200": "2.88",
    "lite_transformer_wmt_en_de_408": "11.74",
    "lite_transformer_wmt_en_de_496": "17.28",
    "lite_transformer_wmt_en_fr_200": "2.88",
    "lite_transformer_wmt_en_fr_408": "11.74",
    "lite_transformer_wmt_en_fr_496": "17.28",
    "lite_transformer_cnn_dm": "17.28",
    "transformer_iwslt_de_en_128": "2.84",
    "transformer_iwslt_de_en_192": "5.73",
    "transformer_iwslt_de_en_240": "8.54",
    "lite_transformer_iwslt_de_en_160": "2.77",
    "lite_transformer_iwslt_de_en_240": "5.43",
    "lite_transformer_iwslt_de_en_320": "8.93",
    "transformer_lm_wiki103_512": "37.83",
    "lite_transformer_lm_wiki103": "37.18",
}
SMALL = {
    "lite_transformer_quickstart",
    "transformer_quickstart",
    "lite_transformer_lm_small",
    "transformer_lm_small",
}


def build(name: str, words: int = 20):
    task = "language_modeling" if "_lm_" in name else "translation"
    model = parse_model("--task", task, "--arch", name)
    with torch.device("meta"):  # only sizes are looked at
        return build_model(model, stub_task(dictionary(words)))


def count(model) -> int:
    """Parameters that are neither embeddings nor output projection."""
    return sum(
        p.numel()
        for name, p in model.named_parameters()
        if not any(part in name for part in ("embed_tokens", "output_projection", "softmax.tail"))
    )


@pytest.mark.parametrize("name, published", PUBLISHED.items())
def test_parameters_equal_the_published_count(name, published):
    words = IWSLT_WORDS - 4 if "iwslt" in name else WIKITEXT_WORDS if "wiki" in name else 20
    model = build(name, words)
    output = model.decoder.output_projection.weight.numel() if "iwslt" in name else 0
    assert f"{(count(model) + output) / 1e6:.2f}" == published


@pytest.mark.parametrize("name", presets.LIGHTCONV)
def test_lightconv_baselines_are_lightweight(name):
    """fairseq's parser would make them dynamic, whose kernel predictors cost more."""
    types = {type(m).__name__ for m in build(name).modules()}
    assert "LightweightConv1dTBC" in types
    assert not any(name.startswith("Dynamic") for name in types)


def test_the_table_is_complete():
    """Every architecture has a published count, is a lightconv or small enough for a CPU."""
    names = {name for rows, _, _ in presets.TABLE.values() for name in rows}
    rest = names - set(PUBLISHED) - set(presets.LIGHTCONV)
    assert rest == SMALL


@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_models_build(name):
    assert count(build(name)) > 0


def test_wmt_presets_tie_all_embeddings():
    model = build("lite_transformer_wmt_en_de_200")
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    separate = build("lite_transformer_iwslt_de_en_160")
    assert separate.decoder.output_projection.weight is not separate.decoder.embed_tokens.weight


@pytest.mark.parametrize("name", [*presets.LITE_TRANSFORMER_LM, *presets.TRANSFORMER_LM])
def test_language_models_are_the_same_through_hydra(name):
    parsed = parse_model("--task", "language_modeling", "--arch", name)
    models = []
    for cfg in (parsed, from_hydra({}, name, "task=language_modeling", "task.data=text")):
        with torch.device("meta"):
            models.append(build_model(cfg, stub_task(dictionary(WIKITEXT_WORDS))))
    shapes = [{key: p.shape for key, p in model.named_parameters()} for model in models]
    assert type(models[0]) is type(models[1]) and shapes[0] == shapes[1]
