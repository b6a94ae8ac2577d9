"""Figures of hand-made attention, whose answers are known, and the roles that follow."""

import math

import pytest
import torch
from fairseq.data import Dictionary
from test_head_gates import KINDS
from test_head_importance import batches_of, model_of
from torch import nn

from lite_transformer_plugin.heads.attention_maps import Seen, watch
from lite_transformer_plugin.heads.names import Attention, Head, list_heads
from lite_transformer_plugin.heads.roles import (
    FIGURES,
    NEVER_RAREST,
    FigureMeter,
    kinds_of,
    most_important,
    rows,
    sum_figures,
    word_counts,
)
from lite_transformer_plugin.heads.roles import (
    KINDS as ROLES,
)

PAD, EOS, UNK = 1, 2, 3
COUNTS = torch.tensor([NEVER_RAREST, NEVER_RAREST, NEVER_RAREST, 0, 100, 50, 5, 5])
WORDS = [4, 5, 6, EOS]  # how often they occur: 100, 50, 5


def seen(weights, queries, keys=None, part: str = "E") -> Seen:
    """Weights (T, S) of one head, or (H, T, S), on one sentence."""
    weights = torch.as_tensor(weights, dtype=torch.float)
    weights = weights.view(1, -1, *weights.shape[-2:])
    queries = torch.tensor([queries])
    keys = queries if keys is None else torch.tensor([keys])
    attention = Attention(part, 1, nn.Identity(), tuple(range(1, weights.size(1) + 1)))
    real = (queries.ne(PAD), keys.ne(PAD))
    weights = weights.masked_fill(~real[0][:, None, :, None], 0.0)
    return Seen(attention, weights, weights, queries, keys, *real, None)


def figures(one: Seen, counts=COUNTS, common: int = 50) -> dict:
    """Of the first head; None where nothing is counted."""
    sums = sum_figures(one, counts, common, EOS)
    means = [s / n if n else None for s, n in zip(*sums[:, [0, -1]].t().tolist(), strict=True)]
    return dict(zip(FIGURES, means, strict=True))


def looking_at(keys, size: int | None = None) -> torch.Tensor:
    """All weight of each query on one key."""
    return torch.eye(size or len(keys))[keys]


# --- figures --------------------------------------------------------------------------------------


def test_even_attention():
    found = figures(seen(torch.full((4, 4), 0.25), WORDS))
    assert found["entropy"] == pytest.approx(math.log(4))
    assert found["normalised_entropy"] == pytest.approx(1)
    assert found["confidence"] == 0.25
    assert found["mean_offset"] == pytest.approx(0)
    assert found["mean_distance"] == pytest.approx(20 / 16)


def test_attention_to_one_key():
    found = figures(seen(looking_at([2, 2, 2, 2]), WORDS))
    assert found["entropy"] == found["normalised_entropy"] == 0
    assert found["confidence"] == 1
    assert found["mean_offset"] == pytest.approx((2 + 1 + 0 - 1) / 4)
    assert found["mean_distance"] == pytest.approx(1)
    assert found["share_rarest"] == found["share_rarest_uncommon"] == 1
    assert found["share_previous"] == pytest.approx(1 / 3)
    assert found["share_next"] == pytest.approx(1 / 3)
    assert found["share_end"] == 0


def test_neighbours_are_counted_where_there_are_any():
    previous = figures(seen(looking_at([0, 0, 1, 2]), WORDS))
    assert (previous["share_previous"], previous["share_next"]) == (1, 0)
    following = figures(seen(looking_at([1, 2, 3, 3]), WORDS))
    assert (following["share_previous"], following["share_next"]) == (0, 1)
    assert previous["mean_offset"] == -following["mean_offset"] == -0.75


@pytest.mark.parametrize("left", [True, False])
def test_padding_counts_nowhere(left):
    """Of keys on the left neither in offsets."""
    plain = looking_at([1, 0, 1, 3])
    padded, words = torch.zeros(6, 6), [PAD, PAD, *WORDS] if left else [*WORDS, PAD, PAD]
    place = slice(2, 6) if left else slice(0, 4)
    padded[place, place] = plain
    assert figures(seen(padded, words)) == figures(seen(plain, WORDS))


def test_confidence_leaves_the_end_out():
    weights = [[0.2, 0.2, 0.1, 0.5], [0.6, 0.1, 0.1, 0.2], [0, 0, 0, 1], [1, 0, 0, 0]]
    found = figures(seen(weights, WORDS))
    assert found["confidence"] == pytest.approx((0.2 + 0.6 + 0) / 3)
    assert found["share_end"] == 0.5


def test_a_decoder_looks_back():
    words = [EOS, 4, 5, 6]
    weights = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0, 0, 1, 0]]
    found = figures(seen(weights, words, part="D"))
    assert found["share_next"] is None
    entropies = [math.log(2), -0.2 * math.log(0.2) - 0.8 * math.log(0.4), 0]
    normalised = [e / math.log(n) for e, n in zip(entropies, (2, 3, 4), strict=True)]
    assert found["normalised_entropy"] == pytest.approx(sum(normalised) / 3)
    assert found["mean_offset"] == pytest.approx(-(0 + 0.5 + 0.8 + 1) / 4)
    # the rarest in sight: there is a choice from the third query on
    assert found["share_rarest"] == 0
    assert figures(seen(looking_at([0, 1, 2, 3]), words, part="D"))["share_rarest"] == 1


def test_offsets_between_two_languages():
    """The source is padded on the left, the target is longer and shifted."""
    target, source = [EOS, 4, 5, 6, 4], [PAD, 4, 5, EOS]
    weights = torch.zeros(5, 4)
    weights[range(5), [1, 2, 3, 3, 3]] = 1.0
    found = figures(seen(weights, target, source, "A"))
    assert found["mean_offset"] == pytest.approx((0 + 0 + 0 - 1 - 2) / 5)
    assert found["share_previous"] == pytest.approx(1 / 3)  # position 5 has none
    assert found["share_next"] == 0
    assert found["share_end"] == pytest.approx(3 / 5)


def test_any_of_equally_rare_tokens_will_do():
    words = [4, 6, 7, EOS]
    assert figures(seen(looking_at([1, 2, 1, 2]), words))["share_rarest"] == 1
    assert figures(seen(looking_at([1, 2, 0, 3]), words))["share_rarest"] == 0.5


def test_where_all_are_equally_rare_there_is_no_choice():
    assert figures(seen(looking_at([0, 1, 2]), [6, 7, EOS]))["share_rarest"] is None


def test_sentences_of_frequent_tokens_are_apart():
    common = figures(seen(looking_at([1, 1, 1]), [4, 5, EOS]))
    assert common["share_rarest"] == 1 and common["share_rarest_uncommon"] is None


def test_counts_of_a_dictionary():
    dictionary = Dictionary()
    for word, count in (("a", 100), ("b", 50), ("c", 5), ("d", 0)):
        dictionary.add_symbol(word, count)
    counts, common = word_counts(dictionary, frequent=2)
    assert counts.tolist() == [*[NEVER_RAREST] * 3, 0, 100, 50, 5, 0]
    assert common == 50
    assert word_counts(dictionary, frequent=500)[1] == 0


# --- a model --------------------------------------------------------------------------------------


def measured(model, batches) -> dict:
    meter = FigureMeter(model, frequent=10)
    for batch in batches:
        watch(model, batch, meter)
    return meter.result()


def counted(model):
    """A model whose dictionaries have counts."""
    for side in (getattr(model, name, None) for name in ("encoder", "decoder")):
        if side is not None:
            side.dictionary.count = [1 + i * i % 17 for i in range(len(side.dictionary))]
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_figures_do_not_depend_on_batches(kind):
    model = counted(model_of(kind))
    found = measured(model, batches_of(kind, 16))
    assert list(found) == list_heads(model)
    sides = ("", "", "") if kind == "roberta" else ("", "source", "source target")
    for size, left in zip((1, 2, 3), sides, strict=True):
        again = measured(model, batches_of(kind, size, left))
        assert list(again) == list(found)
        for head, expected in found.items():
            for name in FIGURES:
                value = (
                    expected[name]
                    if expected[name] is None
                    else pytest.approx(expected[name], rel=1e-5, abs=1e-6)
                )
                assert again[head][name] == value, f"{name} of {head}"
    looks_back = [figures["share_next"] is None for head, figures in found.items()]
    assert looks_back == [head.part == "D" for head in found]
    for head in found.values():
        assert 0 < head["normalised_entropy"] < 1 and 0 < head["confidence"] < 1


def test_half_precision_gives_the_same():
    flags = ["--activation-fn", "relu"]
    exact, half = (
        measured(
            counted(model_of("transformer", *flags, dtype=dtype)), batches_of("transformer", 3)
        )
        for dtype in (torch.double, torch.half)
    )
    for head in exact:
        for name in ("entropy", "confidence", "mean_offset"):
            assert half[head][name] == pytest.approx(exact[head][name], abs=0.02)


def test_nothing_seen_is_an_error():
    with pytest.raises(ValueError, match="at least one batch"):
        FigureMeter(model_of("transformer")).result()


# --- roles ----------------------------------------------------------------------------------------

NOTHING = dict.fromkeys(FIGURES, 0.0)


@pytest.mark.parametrize(
    "found, kinds",
    [
        ({}, []),
        ({"share_previous": 0.9}, ["positional -1"]),
        ({"share_previous": 0.899}, []),
        ({"share_next": 0.95, "share_rarest_uncommon": 0.5}, ["positional +1", "rare words"]),
        ({"share_rarest": 1.0, "share_rarest_uncommon": None, "share_next": None}, []),
        ({"share_end": 1.0}, []),
    ],
)
def test_roles_by_the_published_thresholds(found, kinds):
    assert kinds_of(NOTHING | found) == kinds
    assert set(kinds) < set(ROLES)


def test_a_row_has_everything_that_is_known_of_a_head():
    heads = [Head("D", 1, 1), Head("E", 1, 2)]
    found = {heads[0]: NOTHING, heads[1]: NOTHING | {"share_previous": 1.0}}
    plain = rows(found)
    assert [row["head"] for row in plain] == ["E:1:2", "D:1:1"]
    assert list(plain[0]) == ["head", *FIGURES, "roles"]
    assert [row["roles"] for row in plain] == ["positional -1", ""]
    more = rows(found, {heads[1]: 0.5}, {heads[1]: ["nsubj to governor", "obj to dependent"]})
    assert [row["importance"] for row in more] == [0.5, None]
    assert [row["roles"] for row in more] == ["positional -1; syntactic", ""]
    assert [row["relations"] for row in more] == ["nsubj to governor; obj to dependent", ""]


def test_the_most_important_quarter():
    importance = {Head("E", 1, i): score for i, score in enumerate((0.1, 0.5, 0.5, 0.2, 0.3), 1)}
    assert most_important(importance) == [Head("E", 1, 2), Head("E", 1, 3)]
    assert len(most_important(importance, share=0.01)) == 1
