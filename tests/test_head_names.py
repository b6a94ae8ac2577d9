"""Names of heads: parse, print, sort; which heads every kind of model has."""

import pytest
from fairseq.modules import MultiheadAttention
from head_models import MODELS, make
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_transformer_plugin.heads import (
    Head,
    attentions,
    check_heads,
    format_heads,
    list_heads,
    masked,
    parse_heads,
)
from lite_transformer_plugin.heads.names import PARTS, check_parts, heads_left, sort_heads

KINDS = [name for name, (_, _, heads) in MODELS.items() if heads]

# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, names",
    [
        ("E:1:3", "E:1:3"),
        ("A:6:1,2", "A:6:1 A:6:2"),
        ("D:2:1-4", "D:2:1 D:2:2 D:2:3 D:2:4"),
        ("E:1:3 A:6:1,2", "E:1:3 A:6:1 A:6:2"),
        ("  D:10:1\n\tE:2:1  A:1:1,3-4 ", "E:2:1 A:1:1 A:1:3 A:1:4 D:10:1"),
        ("E:1:2,1 E:1:1-2 E:1:1", "E:1:1 E:1:2"),
        ("E:10:1 E:2:10 E:2:9", "E:2:9 E:2:10 E:10:1"),
        ("E:1:5-5", "E:1:5"),
        ("", ""),
    ],
)
def test_names_are_read(text, names):
    assert [str(head) for head in parse_heads(text)] == names.split()


@pytest.mark.parametrize(
    "heads, text",
    [
        ([("E", 1, 3)], "E:1:3"),
        ([("A", 6, 2), ("A", 6, 1)], "A:6:1,2"),
        ([("D", 2, n) for n in (1, 2, 3, 4)], "D:2:1-4"),
        ([("D", 1, n) for n in (1, 2, 4, 6, 7, 8)], "D:1:1,2,4,6-8"),
        ([("D", 1, 1), ("A", 1, 1), ("E", 10, 1), ("E", 2, 1)], "E:2:1 E:10:1 A:1:1 D:1:1"),
        ([], ""),
    ],
)
def test_names_are_printed_short_and_sorted(heads, text):
    assert format_heads(Head(*head) for head in heads) == text


heads_of_any_model = st.lists(
    st.builds(Head, st.sampled_from(sorted(PARTS)), st.integers(1, 40), st.integers(1, 200))
)


@settings(deadline=None)
@given(heads_of_any_model)
def test_what_is_printed_is_read_back(heads):
    expected = sort_heads(heads)
    assert parse_heads(format_heads(heads)) == expected
    assert parse_heads(" ".join(map(str, heads))) == expected
    assert set(expected) == set(heads) and len(expected) == len(set(heads))


@settings(deadline=None)
@given(heads_of_any_model)
def test_heads_are_sorted_by_part_layer_and_number(heads):
    keys = [("EAD".index(head.part), head.layer, head.head) for head in sort_heads(heads)]
    assert keys == sorted(keys)


WRONG = ["E", "E:1", "E:1:", "E:0:1", "E:1:0", "E:-1:1", "E:1:1:1", ":1:1", "E:1:a", "E:1:1-", "3"]
WRONG += ["E:1:1,", "E:1:,1", "E:1: 2", "E:01:1", "E:1:1.5", "E:1:¹", "E:1:1-99999999999", "E1:3"]


@pytest.mark.parametrize("piece", WRONG)
def test_what_is_no_name_is_named_with_the_right_form(piece):
    with pytest.raises(ValueError, match="PART:LAYER:HEAD.*E:1:3, A:6:1,2 or D:2:1-4") as caught:
        parse_heads(f"E:1:3 {piece} A:1:1")
    assert repr(piece.split()[0]) in str(caught.value)


@pytest.mark.parametrize("piece", ["X:1:1", "e:1:1", "EA:1:1"])
def test_an_unknown_part_is_named_with_those_there_are(piece):
    with pytest.raises(ValueError, match=rf"'{piece}'.* E \(encoder self-.* A \(.* D \(") as caught:
        parse_heads(f"E:1:1 {piece}")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="there is no part"):
        check_heads(make("roberta"), [Head(piece.split(":")[0], 1, 1)])


@pytest.mark.parametrize("span", ["4-1", "1-2-3"])
def test_a_range_that_is_none_is_named(span):
    with pytest.raises(ValueError, match=f"'E:1:2,{span}': '{span}' is no range"):
        parse_heads(f"D:1:1 E:1:2,{span}")


# --- the heads of a model -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_the_heads_of_every_kind_of_model(kind):
    model = make(kind)
    heads = list_heads(model)
    assert format_heads(heads) == MODELS[kind][2]
    assert heads == sort_heads(heads)
    for part in PARTS:
        assert list_heads(model, [part]) == [head for head in heads if head.part == part]
    assert list_heads(model, ["D", "E"]) == [head for head in heads if head.part != "A"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_attention_is_listed_with_its_module(kind):
    model = make(kind)
    found = attentions(model)
    everywhere = {id(m) for m in model.modules() if isinstance(m, MultiheadAttention)}
    assert {id(attention.module) for attention in found} == everywhere
    assert len(found) == len(everywhere)
    assert [name for attention in found for name in attention.names()] == list_heads(model)


def test_modules_are_those_of_the_layer_that_names_them():
    model = make("transformer")
    modules = {attention.place: attention.module for attention in attentions(model)}
    for i, layer in enumerate(model.decoder.layers, start=1):
        assert modules["D", i] is layer.self_attn
        assert modules["A", i] is layer.encoder_attn
    lite = make("lite_transformer")
    assert attentions(lite)[0].module is lite.encoder.layers[0].self_attn.attention


LAYERS = ["--encoder-layers", "3", "--decoder-layers", "3"]


@pytest.mark.parametrize(
    "kind, flags",
    [
        ("transformer", ["--checkpoint-activations", *LAYERS]),
        ("lite_transformer", ["--checkpoint-activations"]),
        ("bart", ["--checkpoint-activations"]),
        ("transformer", ["--encoder-layerdrop", "0.7", "--decoder-layerdrop", "0.7", *LAYERS]),
        ("transformer_lm", ["--decoder-layerdrop", "0.7"]),
        ("roberta", ["--encoder-layerdrop", "0.7"]),
    ],
)
def test_checkpointed_and_dropped_layers_have_the_same_heads(kind, flags):
    plain = make(kind, *(LAYERS if LAYERS[0] in flags else []))
    model = make(kind, *flags).train()
    for _ in range(10):  # in training, LayerDrop draws layers anew
        assert list_heads(model) == list_heads(plain)


def test_removed_heads_leave_the_names_of_the_others():
    model = make("transformer")
    model.encoder.layers[1].self_attn.heads_left = (2, 4)
    model.decoder.layers[0].encoder_attn.heads_left = ()
    assert format_heads(list_heads(model)) == "E:1:1-4 E:2:2,4 E:3:1-4 A:2:1-3 D:1:1-3 D:2:1-3"
    assert heads_left(model.encoder.layers[1].self_attn) == (2, 4)
    empty = next(a for a in attentions(model) if a.place == ("A", 1))
    assert empty.heads == () and empty.names() == ()
    check_heads(model, parse_heads("E:2:2,4"))
    with pytest.raises(ValueError, match="E:2:3: layer 2 of part E has heads 2,4$"):
        check_heads(model, parse_heads("E:2:2,3"))
    with pytest.raises(ValueError, match="A:1:1: layer 1 of part A has no heads$"):
        check_heads(model, parse_heads("A:1:1"))


@pytest.mark.parametrize(
    "kind, text, message",
    [
        ("transformer", "E:4:1", "E:4:1: the model has encoder self-attention in layers 1-3"),
        ("transformer", "E:1:1 D:3:1", "D:3:1: the model has decoder self-attention in layers 1,2"),
        ("transformer", "E:3:5", "E:3:5: layer 3 of part E has heads 1-4"),
        ("transformer", "D:1:3,4", "D:1:4: layer 1 of part D has heads 1-3"),
        ("lite_transformer", "E:1:3", "E:1:3: layer 1 of part E has heads 1,2"),
        ("transformer_lm", "A:1:1", "A:1:1: the model has encoder-decoder attention in no layer"),
        ("roberta", "D:1:1", "D:1:1: the model has decoder self-attention in no layer"),
        ("lightconv", "E:1:1", "E:1:1: the model has encoder self-attention in no layer"),
        ("fconv", "E:1:1", "FConvModel has no attention heads"),
        ("lstm", "A:1:1", "LSTMModel has no attention heads"),
    ],
)
def test_an_unknown_head_is_named_with_what_the_model_has(kind, text, message):
    model, heads = make(kind), parse_heads(text)
    with pytest.raises(ValueError) as caught:
        check_heads(model, heads)
    assert str(caught.value) == message
    with pytest.raises(ValueError) as caught, masked(model, heads):
        pass
    assert str(caught.value) == message


def test_unknown_parts_are_no_empty_list():
    with pytest.raises(ValueError, match="there is no part 'X', choose one of E"):
        list_heads(make("roberta"), ["E", "X"])
    assert check_parts("AE") == {"A", "E"}
