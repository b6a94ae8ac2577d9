"""The embedding size that meets a budget."""

import pytest

from lite_transformer_plugin import build
from lite_transformer_plugin.cost import Lengths, count
from lite_transformer_plugin.cost.width import Family, find_width


@pytest.mark.parametrize(
    "arch, budget, width",
    [
        ("transformer_iwslt_de_en_128", 54_000_000, 120),
        ("transformer_wmt_128", 338_600_000, 256),
        ("lite_transformer_iwslt_de_en_160", 119_000_000, 240),
        ("lite_transformer_wmt_en_de_200", 527_000_000, 496),
        ("lightconv_iwslt_de_en_128", 115_000_000, 192),
    ],
)
def test_published_budgets_lead_to_published_widths(arch, budget, width):
    nearest, within = find_width(Family(arch, 20), budget)
    assert nearest.embed_dim == width
    assert within.cost.mult_adds <= budget
    assert within.embed_dim <= nearest.embed_dim


def test_nearest_means_no_width_is_nearer_and_within_none_wider():
    family = Family("transformer_iwslt_de_en_128", 20)
    budget = 100_000_000
    nearest, within = find_width(family, budget)
    costs = {d: family.at(d).cost.mult_adds for d in range(140, 184, family.step)}
    assert nearest.embed_dim == min(costs, key=lambda d: abs(costs[d] - budget))
    assert within.embed_dim == max(d for d, cost in costs.items() if cost <= budget)


@pytest.mark.parametrize(
    "arch, flags, step",
    [
        ("transformer_iwslt_de_en_128", [], 4),
        ("transformer_wmt_128", [], 8),
        ("lite_transformer_wmt_en_de_200", [], 8),  # four heads in half the channels
        ("lite_transformer", ["--encoder-attention-heads", "8"], 16),
        ("transformer", ["--encoder-ffn-embed-dim", "768"], 8),
    ],
)
def test_widths_are_what_heads_divide(arch, flags, step):
    assert Family(arch, 20, flags).step == step


def test_the_printed_flags_build_that_model():
    lengths = Lengths(20, 40)
    for arch in ("transformer_iwslt_de_en", "lite_transformer", "lightconv_iwslt_de_en_128"):
        family = Family(arch, 20, ["--encoder-layers", "7"], lengths)
        found, _ = find_width(family, 40_000_000)
        flags = ["--encoder-layers", "7", *family.command_line(found)]
        model = build.architecture(arch, 20, flags, weights=False)
        assert count(model, lengths).mult_adds == found.cost.mult_adds


def test_the_ffn_keeps_its_ratio():
    found, _ = find_width(Family("transformer_wmt_128", 20), 200_000_000)
    assert found.flags["encoder_ffn_embed_dim"] == 4 * found.embed_dim


def test_full_costs_depend_on_the_vocabulary():
    budget = 100_000_000
    widths = [
        find_width(Family("transformer_wmt_128", words, convention="full"), budget)[0].embed_dim
        for words in (100, 10_000)
    ]
    assert widths[0] > widths[1]


def test_budgets_that_nothing_meets_are_refused():
    family = Family("transformer_iwslt_de_en_128", 20)
    with pytest.raises(ValueError, match="the narrowest, 4, costs"):
        find_width(family, 1000)
    with pytest.raises(ValueError, match="more than"):
        find_width(family, 10**15)
