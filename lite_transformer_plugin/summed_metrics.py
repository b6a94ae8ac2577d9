"""Metrics that are figures of sums: perplexity, ROUGE, accuracy, F1, Matthews' correlation.

Each sample of a split (a block of text, a summary, a pair of sentences) adds a few numbers, and the
figure is made of their sums. So a paired bootstrap (Efron 1979) draws samples and sums again,
without another pass of the model.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .metrics import METRICS
from .rouge import KINDS, rouge_of_each
from .significance import Bootstrap, McNemar

Array = np.ndarray


class SummedMetric:
    """A figure of sums; has what ``scoring.Bleu`` has."""

    def __init__(
        self,
        name: str,
        statistics: Callable[[Sequence], Array],
        figure: Callable[[Array], Array],
        signature: str,
    ):
        """
        Args:
            statistics: from what a pass leaves of each of S samples, (S, k) numbers.
            figure: from sums (..., k), the metric (...).
            signature: how it is counted, in words.
        """
        self.about = METRICS[name]
        self.statistics, self.figure, self.signature = statistics, figure, signature

    def score(self, outputs: Sequence) -> float:
        return float(self.figure(self.statistics(outputs).sum(0)))

    def paired(self, base: Sequence, resamples: int = 1000) -> Bootstrap | McNemar:
        """A test of systems against this one."""
        kind = McNemar if self.about.name == "accuracy" else Bootstrap
        return kind(self, base, resamples)


# --- the metrics ----------------------------------------------------------------------------------


def perplexity() -> SummedMetric:
    """Of a pass that leaves (loss in nats, tokens) of every block of text."""
    return SummedMetric(
        "perplexity",
        _numbers,
        lambda sums: np.exp(sums[..., 0] / sums[..., 1]),
        "perplexity|per:token",
    )


def summaries(references: Sequence[str]) -> SummedMetric:
    """ROUGE-L of texts.

    Raises:
        ValueError: for a split without references, or one without a word.
    """
    if not references or None in references:
        raise ValueError("ROUGE needs references: the split has no target side, or is empty")
    rouge_of_each(references[:1], references[:1])  # is the package there?
    for line, text in enumerate(references, 1):
        if not text.strip():
            raise ValueError(f"ROUGE needs references: number {line} is empty")

    def statistics(texts: Sequence[str]) -> Array:
        each = rouge_of_each(texts, references)
        return np.array([[*(scores[kind] for kind in KINDS), 1] for scores in each])

    column = list(KINDS).index("rougeLsum")
    return SummedMetric(
        "rouge",
        statistics,
        lambda sums: sums[..., column] / sums[..., -1],
        "rougeLsum|F1|stemmed|rouge-score",
    )


def predictions(name: str, labels: Sequence[str]) -> SummedMetric:
    """Of a pass that leaves (true class, predicted class) of every sample, as numbers from 0.

    Args:
        name: accuracy, f1 or matthews.
        labels: names of the classes. F1 is that of the class called 1, or of the last by name.

    Raises:
        ValueError: for more or less than two classes where two are needed.
    """
    if name == "accuracy":
        return SummedMetric(name, _correct, lambda s: 100 * s[..., 0] / s[..., 1], "accuracy")
    if len(labels) != 2:
        raise ValueError(
            f"--metric {name} needs two classes, not {len(labels)} ({', '.join(labels)}): "
            "take accuracy"
        )
    positive = labels.index("1" if "1" in labels else max(labels))

    def confusion(outputs: Sequence) -> Array:
        true, found = (_numbers(outputs) == positive).T
        return np.stack([true & found, ~true & found, true & ~found, ~true & ~found], 1).astype(
            float
        )

    figure = _f1 if name == "f1" else _matthews
    return SummedMetric(name, confusion, figure, f"{name}|positive:{labels[positive]}")


def _numbers(outputs: Sequence) -> Array:
    return np.asarray(outputs, dtype=float)


def _correct(outputs: Sequence) -> Array:
    true, found = _numbers(outputs).T
    return np.stack([true == found, np.ones_like(true)], axis=1).astype(float)


def _f1(sums: Array) -> Array:
    hits, false, missed, _ = np.moveaxis(sums, -1, 0)
    return 100 * _share(2 * hits, 2 * hits + false + missed)


def _matthews(sums: Array) -> Array:
    hits, false, missed, rest = np.moveaxis(sums, -1, 0)
    spread = (hits + false) * (hits + missed) * (rest + false) * (rest + missed)
    return 100 * _share(hits * rest - false * missed, np.sqrt(spread))


def _share(part: Array, whole: Array) -> Array:
    """0 where there is nothing, as in scikit-learn."""
    return np.divide(part, whole, out=np.zeros_like(whole, dtype=float), where=whole > 0)
