"""Which heads go first: scores, orders, how many, and the least a layer keeps."""

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from fairseq.modules import MultiheadAttention
from head_models import model_of
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_transformer_plugin.heads import Head, attentions, list_heads, parse_heads
from lite_transformer_plugin.heads.names import PARTS, sort_heads
from lite_transformer_plugin.heads.ordering import (
    ablation_scores,
    by_score,
    first_heads,
    number_of,
    random_scores,
    stepwise,
    to_remove,
    weight_norms,
)

EIGHT = parse_heads("E:1:1-4 A:1:1,2 D:1:1,2")


def scores_of(text: str, values) -> dict[Head, float]:
    return dict(zip(parse_heads(text), values, strict=True))


@st.composite
def models(draw) -> list[Head]:
    """The heads of some model, of which modules may have lost some."""
    heads = []
    for part in draw(st.sets(st.sampled_from(sorted(PARTS)), min_size=1)):
        for layer in range(1, draw(st.integers(1, 3)) + 1):
            numbers = draw(st.sets(st.integers(1, 6)))
            heads += [Head(part, layer, number) for number in numbers]
    return heads or [Head("E", 1, 1)]


@st.composite
def orders(draw) -> list[Head]:
    return draw(st.permutations(draw(models())))


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["transformer", "lite_transformer", "bart", "transformer_lm"])
def test_weight_norms_sum_the_rows_of_each_head(kind):
    model = model_of(kind)
    norms = weight_norms(model)
    assert list(norms) == list_heads(model)
    for attention in attentions(model):
        for i, head in enumerate(attention.names()):
            size = attention.module.head_dim
            rows = slice(i * size, (i + 1) * size)
            projections = [getattr(attention.module, f"{name}_proj") for name in "qkv"]
            expected = sum(
                p.weight[rows].abs().sum() + p.bias[rows].abs().sum() for p in projections
            )
            assert norms[head] == pytest.approx(expected.item(), rel=1e-5)
    assert list(weight_norms(model, ["D"])) == list_heads(model, ["D"])


def test_weight_norms_rank_the_heads_of_a_layer_as_fairseq_does():
    """Its own pruner of RoBERTa, which names what it keeps by rows."""
    model = model_of("roberta")
    norms = weight_norms(model)
    for attention in attentions(model):
        module = attention.module
        kept = module._get_reserve_head_index(len(attention.heads))  # the largest first
        expected = [attention.names()[start // module.head_dim] for start, _ in kept]
        own = {head: norms[head] for head in attention.names()}
        assert by_score(own) == expected[::-1]


def test_weight_norms_where_heads_were_removed_or_have_no_bias():
    model = model_of("transformer")
    shrunk = MultiheadAttention(8, 2, bias=False, self_attention=True).half()
    shrunk.heads_left = (2, 4)
    for projection, value in ((shrunk.q_proj, 1.0), (shrunk.k_proj, -2.0), (shrunk.v_proj, 0.5)):
        projection.weight.data[:4] = value
        projection.weight.data[4:] = 60000.0  # their sum does not fit into float16
    model.encoder.layers[0].self_attn = shrunk
    headless = torch.nn.Module()
    headless.heads_left = ()
    model.decoder.layers[0].encoder_attn = headless
    norms = weight_norms(model)
    assert list(norms) == list_heads(model)
    assert norms[Head("E", 1, 2)] == 4 * 8 * 3.5
    assert norms[Head("E", 1, 4)] == 3 * 4 * 8 * torch.tensor(60000.0).half().item()
    assert not any(head.place == ("A", 1) for head in norms)


def test_random_scores_depend_on_the_seed_alone():
    scores = random_scores(EIGHT, seed=0)
    assert random_scores(reversed(EIGHT), seed=0) == scores
    assert random_scores(EIGHT * 2, seed=0) == scores
    # the first numbers of Python's generator, the same on every platform
    assert list(scores.values())[:3] == [0.8444218515250481, 0.7579544029403025, 0.420571580830845]
    drawn = {tuple(by_score(random_scores(EIGHT, seed))) for seed in range(20)}
    assert len(drawn) == 20


def test_ablation_scores_are_what_bleu_loses():
    bleu = scores_of("E:1:1-4", [30.5, 31.0, 36.0, 36.5])
    scores = ablation_scores(bleu, base=36.0)
    assert list(scores.values()) == [5.5, 5.0, 0.0, -0.5]
    assert by_score(scores) == [Head("E", 1, n) for n in (4, 3, 2, 1)]


# --- orders ---------------------------------------------------------------------------------------


def test_the_least_important_head_goes_first_and_names_decide_ties():
    scores = scores_of("E:1:1-4 A:1:1,2 D:1:1,2", [0.5, 0.1, 0.5, 0.9, 0.1, 0.5, -2.0, 0.0])
    expected = parse_heads("D:1:1") + parse_heads("D:1:2") + parse_heads("E:1:2 A:1:1")
    expected += parse_heads("E:1:1,3 A:1:2") + parse_heads("E:1:4")
    assert by_score(scores) == expected
    assert by_score(dict(reversed(scores.items()))) == expected


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(EIGHT), st.floats(allow_nan=False), min_size=1))
def test_scores_ascend_and_equal_ones_keep_the_order_of_names(scores):
    order = by_score(scores)
    assert len(order) == len(scores) and set(order) == set(scores)
    for head, later in zip(order, order[1:], strict=False):
        assert scores[head] < scores[later] or (
            scores[head] == scores[later] and sort_heads([head, later])[0] == head
        )


@settings(deadline=None)
@given(models(), st.sets(st.sampled_from(sorted(PARTS)), min_size=1))
def test_parts_alone(heads, parts):
    scores = random_scores(heads, seed=1)
    expected = [head for head in by_score(scores) if head.part in parts]
    if expected:
        assert by_score(scores, parts) == expected
    else:
        with pytest.raises(ValueError, match=f"no head of part .*{min(parts)} "):
            by_score(scores, parts)


def test_what_cannot_be_ordered_is_refused():
    with pytest.raises(ValueError, match="there is no head of part E .*, A .*, D .* to put in"):
        by_score({})
    with pytest.raises(ValueError, match="there is no part 'X'"):
        by_score(random_scores(EIGHT, 0), ["X"])
    with pytest.raises(ValueError, match="E:1:2: its score is not a number"):
        by_score(scores_of("E:1:1-3", [1.0, math.nan, 0.0]))


# --- how many -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [i / 10 for i in range(11)] + [i * 0.1 for i in range(11)])
def test_a_share_is_rounded_up_exactly(share):
    tenths = Fraction(round(share * 10), 10)
    for total in range(97):
        assert number_of(share, total) == math.ceil(total * tenths)


def test_what_plain_floating_point_gets_wrong():
    assert math.ceil(30 * (0.1 * 3)) == 10 and number_of(0.1 * 3, 30) == 9
    assert number_of(1e-6, 96) == 1 and number_of(0.999999, 96) == 96
    assert (number_of(0, 96), number_of(1, 96), number_of(0.01, 1)) == (0, 96, 1)
    assert number_of(1 / 3, 96) == 32


@pytest.mark.parametrize("share", [-0.1, 1.01, 40, math.nan, math.inf])
def test_a_share_outside_0_to_1_is_refused(share):
    for call in (number_of, lambda share, _: to_remove(EIGHT, share)):
        with pytest.raises(ValueError, match=f"between 0 and 1, not at {share}$"):
            call(share, 8)


@settings(deadline=None)
@given(orders(), st.integers(0, 10))
def test_without_a_minimum_the_first_of_the_order_go(order, tenths):
    expected = order[: math.ceil(Fraction(tenths, 10) * len(order))]
    assert to_remove(order, tenths / 10) == expected
    assert first_heads(iter(order), len(expected)) == expected


@settings(deadline=None)
@given(orders(), st.integers(0, 4), st.data())
def test_every_module_keeps_the_minimum(order, minimum, data):
    """A head goes unless its module would keep too few; the next ones go in its place."""
    modules = Counter(head.place for head in order)
    possible = sum(max(0, size - minimum) for size in modules.values())
    count = data.draw(st.integers(0, possible))
    removed = first_heads(order, count, minimum)
    assert len(removed) == len(set(removed)) == count
    left = modules - Counter(head.place for head in removed)
    assert all(left[place] >= min(minimum, size) for place, size in modules.items())
    for i, head in enumerate(order):  # whoever was passed over could not go
        if head not in removed and any(later in removed for later in order[i:]):
            assert left[head.place] == min(minimum, modules[head.place])
    assert removed == [head for head in order if head in removed]


@settings(deadline=None)
@given(orders(), st.integers(0, 4))
def test_a_share_too_large_names_the_largest_that_works(order, minimum):
    modules = Counter(head.place for head in order)
    possible = sum(max(0, size - minimum) for size in modules.values())
    if possible == len(order):
        assert set(to_remove(order, 1.0, minimum)) == set(order)
        return
    with pytest.raises(ValueError, match=f"cannot remove {len(order)} of {len(order)}") as caught:
        to_remove(order, 1.0, minimum)
    words = str(caught.value).replace(",", "").split()
    share = float(words[words.index("largest") + 3])
    assert int(words[-2]) == possible and len(to_remove(order, share, minimum)) == possible
    with pytest.raises(ValueError, match=f"leave {minimum} in each attention module"):
        first_heads(order, possible + 1, minimum)


@settings(deadline=None)
@given(orders(), st.integers(0, 2), st.data())
def test_what_is_removed_stays_removed_and_counts(order, minimum, data):
    """Also if the order has been made anew, with or without the heads that are gone."""
    possible = len(first_heads_at_most(order, minimum))
    counts = sorted(data.draw(st.tuples(*[st.integers(0, possible)] * 2)))
    already = first_heads(order, counts[0], minimum)
    anew = data.draw(st.permutations(order))
    removed = first_heads(anew, counts[1], minimum, already)
    assert removed[: counts[0]] == already and len(set(removed)) == counts[1]
    rest = [head for head in anew if head not in already]
    assert first_heads(rest, counts[1], minimum, already) == removed
    share = counts[1] / len(order)
    assert to_remove(rest, share, minimum, iter(already)) == removed
    assert to_remove(order, share, minimum, already) == first_heads(order, counts[1], minimum)


def first_heads_at_most(order, minimum: int) -> list[Head]:
    modules = Counter(head.place for head in order)
    return first_heads(order, sum(max(0, size - minimum) for size in modules.values()), minimum)


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="2 heads are removed already, more than 1"):
        first_heads(EIGHT, 1, already=EIGHT[:2])
    with pytest.raises(ValueError, match="cannot remove 9 of 8 heads and leave 0 .* share is 1,"):
        first_heads(EIGHT, 9)
    with pytest.raises(ValueError, match="at least -1 heads a layer: .* not be negative"):
        first_heads(EIGHT, 1, minimum=-1)
    assert first_heads([], 0) == [] == to_remove([], 0.5)


# --- step by step ---------------------------------------------------------------------------------


def test_every_step_measures_what_the_steps_before_have_left():
    calls = []

    def measure(removed):
        calls.append(removed)
        rest = [head for head in EIGHT if head not in removed]
        # the order turns round at every step
        return {head: i * (-1) ** len(calls) for i, head in enumerate(rest)}

    steps = list(stepwise(measure, [0, 2, 2, 3, 8]))
    last, first = EIGHT[:-3:-1], EIGHT[:1]
    others = [head for head in EIGHT[::-1] if head not in last + first]
    assert calls == [(), tuple(last), tuple(last + first)]
    assert steps == [
        (0, []),
        (2, last),
        (2, last),
        (3, last + first),
        (8, last + first + others),
    ]


def test_measuring_is_left_to_whoever_asks_for_the_next_step():
    calls = []

    def measure(removed):
        calls.append(removed)
        return random_scores(EIGHT, seed=len(calls))

    steps = stepwise(measure, [1, 4])
    assert not calls
    assert next(steps)[0] == 1 and len(calls) == 1
    count, removed = next(steps)
    removed.clear()  # the caller's own list
    assert count == 4 and len(calls) == 2 and len(calls[1]) == 1


@settings(deadline=None)
@given(orders(), st.lists(st.integers(0, 20)), st.integers(0, 2))
def test_scores_that_stay_give_one_order(order, counts, minimum):
    scores = {head: float(i) for i, head in enumerate(order)}
    possible = len(first_heads_at_most(order, minimum))
    counts = sorted(min(count, possible) for count in counts)
    steps = list(stepwise(lambda removed: scores, counts, minimum))
    assert steps == [(count, first_heads(order, count, minimum)) for count in counts]


def test_steps_of_one_part_and_scores_without_or_of_removed_heads():
    scores = random_scores(EIGHT, seed=3)
    expected = by_score(scores, ["E"])

    def without(removed):
        return {head: score for head, score in scores.items() if head not in removed}

    def unknown(removed):  # a masked head may have no sensible score
        return scores | dict.fromkeys(removed, math.nan)

    for measure in (without, unknown):
        steps = list(stepwise(measure, [1, 2, 4], parts=["E"]))
        assert steps == [(count, expected[:count]) for count in (1, 2, 4)]


def test_steps_that_cannot_be_are_refused():
    scores = random_scores(EIGHT, seed=3)
    with pytest.raises(ValueError, match="3 heads are removed already, more than 2"):
        list(stepwise(lambda removed: scores, [3, 2]))
    with pytest.raises(
        ValueError, match="cannot remove 6 of 8 heads and leave 1.*0.625, which is 5"
    ):
        list(stepwise(lambda removed: scores, [2, 6], minimum=1))
