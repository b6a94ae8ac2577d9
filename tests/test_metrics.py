"""Metrics of sums: scikit-learn's figures, resamples counted by hand, and what fits which task."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn import metrics as sklearn

from lite_transformer_plugin.metrics import METRICS, metric_of
from lite_transformer_plugin.rouge import rouge
from lite_transformer_plugin.summed_metrics import perplexity, predictions, summaries

TRUE = [0, 0, 1, 1, 1, 0, 1, 0, 1, 1]
FOUND = [0, 1, 1, 1, 0, 0, 1, 1, 1, 0]
WORSE = [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]


def pairs(found: list[int]) -> list[tuple[int, int]]:
    return list(zip(TRUE, found, strict=True))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("accuracy", sklearn.accuracy_score(TRUE, FOUND)),
        ("f1", sklearn.f1_score(TRUE, FOUND)),
        ("matthews", sklearn.matthews_corrcoef(TRUE, FOUND)),
    ],
)
def test_classification_equals_scikit_learn(name, expected):
    assert predictions(name, ["0", "1"]).score(pairs(FOUND)) == pytest.approx(100 * expected)


@pytest.mark.parametrize("name", ["f1", "matthews"])
def test_nothing_found_scores_zero(name):
    """As in scikit-learn, with a warning there."""
    assert predictions(name, ["0", "1"]).score(pairs([0] * 10)) == 0


def test_f1_is_that_of_the_class_called_1():
    turned = predictions("f1", ["1", "0"]).score(pairs(FOUND))
    expected = sklearn.f1_score(TRUE, FOUND, pos_label=0)
    assert turned == pytest.approx(100 * expected)
    assert predictions("f1", ["not", "yes"]).score(pairs(FOUND)) != turned


def test_perplexity():
    blocks = [(3.0, 2), (5.0, 1)]
    assert perplexity().score(blocks) == pytest.approx(np.exp(8 / 3))


def test_summaries():
    texts, references = ["a b", "c"], ["a b c", "d"]
    assert summaries(references).score(texts) == pytest.approx(
        rouge(texts, references)["rougeLsum"]
    )


# --- significance ---------------------------------------------------------------------------------


def test_mcnemar():
    result = predictions("accuracy", ["0", "1"]).paired(pairs(FOUND)).compare(pairs(WORSE))
    assert result.difference == pytest.approx(-30)
    assert result.p == binomtest(0, 3).pvalue == 0.25  # three are lost, none is gained


@pytest.mark.parametrize("name", ["accuracy", "f1"])
def test_equal_systems_differ_by_chance_only(name):
    result = predictions(name, ["0", "1"]).paired(pairs(FOUND)).compare(pairs(FOUND))
    assert (result.difference, result.p) == (0, 1)


def test_the_bootstrap_is_the_one_in_words():
    """Drawn one after the other, by index."""
    random = np.random.RandomState(3)
    base = [(loss, 10) for loss in random.uniform(20, 40, 30)]
    system = [(loss + random.normal(0.9, 2), n) for loss, n in base]
    test = perplexity().paired(base, resamples=2000)
    result = test.compare(system)

    def figure(rows, chosen):
        loss, tokens = np.array(rows)[chosen].sum(0)
        return np.exp(loss / tokens)

    draws = [random.randint(0, 30, 30) for _ in range(2000)]
    differences = np.array([figure(system, d) - figure(base, d) for d in draws])
    p = (np.abs(differences - differences.mean()) >= abs(result.difference)).mean()
    assert result.p == pytest.approx(p, abs=0.04) and 0.001 < p < 0.9
    assert test.compare(system) == result  # the same resamples


def test_a_clear_difference_is_significant():
    base = [(30.0 + i % 3, 10) for i in range(50)]
    worse = [(loss + 3 + i % 2, n) for i, (loss, n) in enumerate(base)]
    result = perplexity().paired(base).compare(worse)
    assert result.difference > 0 and result.significant


# --- what fits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, name, expected",
    [
        ("translation", None, "bleu"),
        ("prune_heads", "rouge", "rouge"),
        ("language_modeling", None, "perplexity"),
        ("sentence_prediction", None, "accuracy"),
        ("sentence_prediction", "f1", "f1"),
    ],
)
def test_the_metric_of_a_task(task, name, expected):
    assert metric_of(task, name) is METRICS[expected]


@pytest.mark.parametrize(
    "task, name, message",
    [
        ("translation", "accuracy", "--metric accuracy does not fit --task translation: bleu, rou"),
        ("language_modeling", "bleu", "does not fit --task language_modeling: perplexity would"),
        ("masked_lm", None, "--task masked_lm: give one of language_modeling, sentence_pred"),
    ],
)
def test_a_metric_that_does_not_fit(task, name, message):
    with pytest.raises(ValueError, match=message):
        metric_of(task, name)


def test_three_classes_have_no_f1():
    with pytest.raises(ValueError, match=r"f1 needs two classes, not 3 \(a, b, c\): take accuracy"):
        predictions("f1", ["a", "b", "c"])


def test_an_empty_reference():
    with pytest.raises(ValueError, match="ROUGE needs references: number 2 is empty"):
        summaries(["a", " "])


def test_directions():
    assert not METRICS["perplexity"].higher_is_better
    assert all(m.higher_is_better for m in METRICS.values() if m.name != "perplexity")
    assert METRICS["bleu"].difference("valid") == "difference in BLEU on valid (points)"
    assert METRICS["perplexity"].difference() == "difference in perplexity"
