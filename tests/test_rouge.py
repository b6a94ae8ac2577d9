"""ROUGE: the package's figures, summary for summary, and through fairseq-generate."""

import re

import pytest
from rouge_score.rouge_scorer import RougeScorer
from stock import LAST, generate, make_run

from lite_transformer_plugin.rouge import KINDS, rouge, rouge_of_each

HYPOTHESES = ["the cat sat. It was running", "a dog", "nothing in common"]
REFERENCES = ["it runs. a cat sat on the mat", "a dog", "quite another text"]


def test_equals_the_package():
    scorer = RougeScorer(list(KINDS), use_stemmer=True)
    for hypothesis, reference, found in zip(
        HYPOTHESES, REFERENCES, rouge_of_each(HYPOTHESES, REFERENCES), strict=True
    ):
        expected = scorer.score(reference.replace(". ", ".\n"), hypothesis.replace(". ", ".\n"))
        assert found == {kind: 100 * score.fmeasure for kind, score in expected.items()}


def test_by_hand():
    found = rouge(["a b c d"], ["a b x d e"])
    assert found["rouge1"] == pytest.approx(100 * 2 * 3 / 9)
    assert found["rouge2"] == pytest.approx(100 * 2 * 1 / 7)
    assert rouge(REFERENCES, REFERENCES) == dict.fromkeys(KINDS, 100.0)


def test_sentences_may_change_places():
    """What rougeLsum has over rougeL."""
    found = rouge(["it runs. the cat sat."], ["the cat sat. it runs."])
    assert found["rougeLsum"] == 100


@pytest.mark.parametrize(
    "hypotheses, references, message",
    [
        (["a"], [""], "the one of line 1 has no word, ''"),
        (["a", "b"], ["a", "..."], "the one of line 2 has no word, '...'"),
        (["a"], [], "1 summaries, but 0 references"),
        ([], [], "there are none"),
    ],
)
def test_bad_input(hypotheses, references, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rouge(hypotheses, references)


def test_fairseq_generate(tmp_path, capsys):
    make_run(tmp_path)
    words = ["--gen-subset", "test", "--scoring", "rouge"]
    generate(tmp_path / "data", tmp_path / "saved" / LAST, *words)
    lines = capsys.readouterr().out.splitlines()
    texts = {
        kind: [x.split("\t")[-1] for x in lines if x.startswith(kind)] for kind in ("D-", "T-")
    }
    found = rouge(texts["D-"], texts["T-"])
    expected = ", ".join(f"{name} {found[kind]:.2f}" for kind, name in KINDS.items())
    assert lines[-1].endswith(expected)
