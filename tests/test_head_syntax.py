"""Syntactic heads: hand-made attention along dependencies, and against a fixed offset."""

import pytest
import torch
from test_head_importance import batches_of, model_of
from test_head_parses import conllu
from torch.testing import assert_close

from lite_transformer_plugin.heads.attention_maps import Seen, watch
from lite_transformer_plugin.heads.names import Head, attentions
from lite_transformer_plugin.heads.parses import Arc, Parse, read_conllu
from lite_transformer_plugin.heads.syntax import (
    DIRECTIONS,
    SyntaxMeter,
    relations_of,
    word_attention,
)

EOS = 2
# three words; in the first sentence word 1 has two pieces
PARSES = [
    Parse(("a", "b", "c"), (Arc(0, 1, "det"), Arc(2, 1, "obj"))),
    Parse(("a", "b", "c"), (Arc(0, 2, "det"), Arc(1, 2, "obj"))),
    Parse(("a", "b", "c"), (Arc(1, 2, "det"),)),
]
OWNERS = [[0, 1, 1, 2], [0, 1, 2], [0, 1, 2]]


def model():
    return model_of("transformer")


def seen(attention, top: list[list[int]]) -> Seen:
    """Of each sentence the piece that all heads look at from each piece; padding on the right."""
    size = max(map(len, top))
    words = torch.full((len(top), size), 1)
    weights = torch.zeros(len(top), len(attention.heads), size, size)
    for i, keys in enumerate(top):
        words[i, : len(keys)] = torch.tensor([5] * (len(keys) - 1) + [EOS])
        weights[i, :, range(len(keys)), keys] = 1.0
    real = words.ne(1)
    return Seen(attention, weights, weights, words, words, real, real, torch.arange(len(top)))


def figures(meter, head: str = "E:1:1", column: str = "share") -> dict:
    rows = [row for row in meter.result() if row["head"] == head]
    return {(row["relation"], row["direction"]): row[column] for row in rows}


def test_hits_are_counted_in_both_directions():
    meter = SyntaxMeter(model(), PARSES, OWNERS)
    # the end of sentence looks somewhere, which does not count
    tops = [[1, 0, 0, 2, 0], [2, 2, 0, 0], [0, 0, 1, 0]]
    meter(seen(meter.attentions[0], tops))
    assert figures(meter) == {
        ("det", "to governor"): pytest.approx(2 / 3),
        ("det", "to dependent"): 1,
        ("obj", "to governor"): 1,
        ("obj", "to dependent"): 0,
    }
    assert set(figures(meter, "E:1:2")) == {(r, d) for r in ("det", "obj") for d in DIRECTIONS}


def test_the_baseline_is_the_best_fixed_offset():
    meter = SyntaxMeter(model(), PARSES, OWNERS)
    meter(seen(meter.attentions[0], [[0, 0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]))
    # det: +1, +2, +1; obj: -1, +1
    baseline, offset = (figures(meter, column=name) for name in ("baseline", "baseline_offset"))
    assert baseline["det", "to governor"] == pytest.approx(2 / 3)
    assert baseline["det", "to dependent"] == baseline["det", "to governor"]
    assert (offset["det", "to governor"], offset["det", "to dependent"]) == (1, -1)
    assert baseline["obj", "to governor"] == 0.5
    assert figures(meter, column="count")["det", "to governor"] == 3


def test_the_end_of_sentence_is_no_word():
    """The largest weight is on the end; of the words the governor has most."""
    meter = SyntaxMeter(model(), PARSES, OWNERS)
    one = seen(meter.attentions[0], [[4, 4, 4, 4, 4]])
    one.weights[0, :, 0] = torch.tensor([0.1, 0.15, 0.05, 0.1, 0.6])
    meter(one)
    assert figures(meter)["det", "to governor"] == 1
    # where there is nothing but the end, no word has the maximum: not even the first
    assert figures(meter)["det", "to dependent"] == 0


def test_words_have_the_sum_of_their_pieces_and_the_mean_over_them():
    weights = torch.tensor(
        [[[[0.1, 0.5, 0.2, 0.2], [0.6, 0.1, 0.1, 0.2], [0.2, 0.3, 0.5, 0], [0] * 4]]]
    )
    pieces = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]])
    expected = [[0.1, 0.7, 0], [0.4, 0.5, 0], [0, 0, 0]]
    assert_close(word_attention(weights, pieces), torch.tensor([[expected]]))


def test_arcs_to_words_without_pieces_are_left_out():
    meter = SyntaxMeter(model(), PARSES[:1], [[0, 0, 0, 2]])
    meter(seen(meter.attentions[0], [[3, 3, 3, 0, 0]]))
    assert meter.result() == []


def test_other_parts_are_not_looked_at():
    found = model()
    meter = SyntaxMeter(found, PARSES, OWNERS)
    decoder = next(a for a in attentions(found) if a.part == "D")
    meter(seen(decoder, [[0] * 5, [0] * 4, [0] * 4]))
    assert meter.result() == []
    assert {a.part for a in meter.attentions} == {"E"}


# --- a model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "bart"])
def test_scores_do_not_depend_on_batches(kind, tmp_path):
    lengths = [2, 5, 1, 3, 4]
    sentences = [[(f"w{i}", (i * i + 1) % n + 1, f"r{i % 2}") for i in range(n)] for n in lengths]
    path = tmp_path / "parses.conllu"
    path.write_text(conllu(*sentences))
    model = model_of(kind)
    meters = []
    for size, left in ((16, ""), (1, ""), (2, "source")):
        meters.append(SyntaxMeter(model, read_conllu(path), [list(range(n)) for n in lengths]))
        first = 0
        for batch in batches_of(kind, size, left):
            last = first + len(batch["net_input"]["src_tokens"])
            watch(model, batch | {"id": torch.arange(first, last)}, meters[-1])
            first = last
    found = meters[0].result()
    assert found and len({row["share"] for row in found}) > 2
    assert all(meter.result() == found for meter in meters)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="encoder self-attention, which this model has not"):
        SyntaxMeter(model_of("transformer_lm"), PARSES, OWNERS)
    with pytest.raises(ValueError, match="no dependency between two words"):
        SyntaxMeter(model(), [Parse(("a",), ())], [[0]])


# --- syntactic heads ------------------------------------------------------------------------------


def row(head: str, relation: str, share: float, baseline: float = 0.35, count: int = 100) -> dict:
    names = {"head": head, "relation": relation, "direction": DIRECTIONS[0]}
    return names | {"share": share, "baseline": baseline, "count": count}


def test_a_syntactic_head_beats_the_baseline_by_ten_points():
    rows = [row("E:1:1", "nsubj", 0.45), row("E:1:2", "nsubj", 0.449), row("E:1:3", "obj", 0.35)]
    rows += [row("E:1:1", "obj", 0.9), row("E:2:1", "amod", 1.0, count=99)]
    assert relations_of(rows) == {Head("E", 1, 1): ["obj to governor", "nsubj to governor"]}
    assert Head("E", 2, 1) in relations_of(rows, least=99)
