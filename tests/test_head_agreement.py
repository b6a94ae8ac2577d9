"""Heads that do the same agree; hand-made ones have known divergences."""

import math

import pytest
import torch
from test_head_importance import batches_of, model_of
from torch.testing import assert_close

from lite_transformer_plugin.heads.agreement import (
    LEAST_WEIGHT,
    MEASURES,
    AgreementMeter,
    cosines,
    jensen_shannon,
    kullback_leibler,
)
from lite_transformer_plugin.heads.attention_maps import watch
from lite_transformer_plugin.heads.names import attentions, parse_heads

WEIGHTS = torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.25, 0.75, 0.0]]])


def test_divergences_of_known_distributions():
    js, kl = jensen_shannon(WEIGHTS), kullback_leibler(WEIGHTS)
    assert js[0, 1] == kl[0, 1] == 0
    assert js[0, 2].item() == pytest.approx(math.log(2))
    forth, back = 0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.25 * math.log(0.5)
    back += 0.75 * math.log(1.5)
    assert kl[0, 3].item() == pytest.approx((forth + back) / 2, abs=1e-6)
    middle = [0.375, 0.625]
    entropies = [-sum(p * math.log(p) for p in ps) for ps in (middle, (0.5, 0.5), (0.25, 0.75))]
    assert js[0, 3].item() == pytest.approx(entropies[0] - sum(entropies[1:]) / 2, abs=1e-6)


def test_divergences_are_symmetric_finite_and_zero_with_oneself():
    for measure in (jensen_shannon, kullback_leibler):
        found = measure(torch.rand(5, 4, 6).softmax(2))
        assert_close(found, found.t())
        assert_close(found.diagonal(), torch.zeros(4).double(), rtol=0, atol=1e-5)
    most = -math.log(LEAST_WEIGHT)
    assert 0 < kullback_leibler(WEIGHTS)[0, 2] < most


def test_cosines_of_known_vectors():
    outputs = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]])
    expected = [1.0, 1.0, 0.0, -1.0, 0.0]
    assert cosines(outputs)[0].tolist() == expected


def measured(model, batches) -> list[dict]:
    meter = AgreementMeter(model)
    for batch in batches:
        watch(model, batch, meter)
    return meter.result()


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "bart"])
def test_agreement_does_not_depend_on_batches(kind):
    model = model_of(kind)
    found = measured(model, batches_of(kind, 16))
    pairs = sum(len(a.heads) * (len(a.heads) - 1) // 2 for a in attentions(model))
    assert len(found) == pairs and list(found[0]) == ["head", "other", *MEASURES]
    for row, again in zip(found, measured(model, batches_of(kind, 1, "source")), strict=True):
        assert [row[key] for key in ("head", "other")] == [again[key] for key in ("head", "other")]
        for name in MEASURES:
            assert again[name] == pytest.approx(row[name], rel=1e-5, abs=1e-6)
        one, other = (parse_heads(row[key])[0] for key in ("head", "other"))
        assert one.place == other.place and one < other


def test_a_copied_head_agrees_with_its_original():
    """Of all projections: the output is compared behind the last one."""
    model = model_of("transformer")
    module = attentions(model)[0].module
    for projection in (module.q_proj, module.k_proj, module.v_proj):
        for tensor in (projection.weight.data, projection.bias.data):
            tensor[:4] = tensor[4:8]
    module.out_proj.weight.data[:, :4] = module.out_proj.weight.data[:, 4:8]
    twins, *others = measured(model, batches_of("transformer", 3))
    assert (twins["head"], twins["other"]) == ("E:1:1", "E:1:2")
    figures = [twins[name] for name in MEASURES]
    assert figures == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)
    assert min(row["attention_js"] for row in others) > 1e-5
    assert max(row["output_cosine"] for row in others) < 0.99


def test_nothing_seen_is_an_error():
    with pytest.raises(ValueError, match="at least one batch"):
        AgreementMeter(model_of("transformer")).result()
