"""What importance cannot be measured on is told in one line; a file of it must be the model's."""

import json

import pytest
import torch
from head_models import make
from importance_batches import PAIRS, SMOOTHED, batch_of, batches_of, importance_of, model_of

from lite_transformer_plugin.heads import Head, list_heads
from lite_transformer_plugin.heads.importance import Importance, measure, read_rows, rows
from lite_transformer_plugin.heads.removal import remove_heads_


def test_bad_input_is_one_line():
    model = model_of("transformer")
    sample = batch_of("transformer", PAIRS)
    speech = {"net_input": {"src_tokens": torch.zeros(2, 3, 4)}}
    cases = [
        ((model, SMOOTHED, [sample], "word"), "no importance per 'word': choose sentence, token"),
        ((model, SMOOTHED, [None, {}]), "at least one batch"),
        ((make("lstm"), SMOOTHED, [sample]), "LSTMModel has no attention heads"),
        ((model, SMOOTHED, [speech]), "batches of text, with src_tokens as a matrix"),
        ((model, SMOOTHED, [{"id": torch.zeros(1)}]), "batches of text"),
    ]
    for args, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            measure(*args)
        assert "\n" not in str(error.value)


def test_a_model_that_changes_the_length_is_refused():
    model = model_of("transformer")

    def cut(module, args, kwargs):
        return (), kwargs | {"src_tokens": kwargs["src_tokens"][:, 1:]}

    model.register_forward_pre_hook(cut, with_kwargs=True)
    with pytest.raises(ValueError, match="does not fit"):
        importance_of(model, "transformer")


def test_a_model_that_lost_all_heads_has_nothing_to_measure():
    model = model_of("roberta")
    remove_heads_(model, list_heads(model))
    with pytest.raises(ValueError, match="RobertaModel has no attention heads"):
        importance_of(model, "roberta")


# --- rows of a file -------------------------------------------------------------------------------


def test_rows_come_back():
    model = model_of("transformer")
    result = measure(model, SMOOTHED, batches_of("transformer", 5))
    shuffled = Importance(dict(reversed(result.scores.items())), "sentence", {})
    written = json.loads(json.dumps(rows(shuffled)))
    assert [row["head"] for row in written] == [str(head) for head in list_heads(model)]
    assert written[0] == {"head": "E:1:1", "importance": result.scores[Head("E", 1, 1)]}
    assert read_rows(written, model) == result.scores


def test_rows_of_another_model_are_refused():
    model = model_of("transformer")
    good = [{"head": str(head), "importance": 0.5} for head in list_heads(model)]
    cases = [
        (good[1:], "importance file of another model: it has no figure for E:1:1"),
        ([*good, {"head": "E:2:1", "importance": 1}], "of another model: E:2:1: the model has"),
        ([{"head": "E:1", "importance": 1}], "is no importance: write"),
        ([{"head": "E:1:1-2", "importance": 1}], "is no importance: write"),
        ([{"head": "E:1:1"}], "is no importance: write"),
        (["E:1:1"], "is no importance: write"),
        ([{"head": 3, "importance": "much"}], "is no importance: write"),
        ([{"head": "E:1:1", "importance": float("nan")}], "importance of E:1:1 is nan"),
    ]
    for written, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            read_rows(written, model)
        assert "\n" not in str(error.value)
