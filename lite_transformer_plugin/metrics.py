"""What a model is judged by, and whether a difference in it is chance.

Every metric here is a figure of sums: each sample of a split (a text, a block of text, a pair of
sentences) adds a few numbers, and the figure is made of their sums. So a paired bootstrap (Efron
1979) draws samples and sums again, without another pass of the model. BLEU, which sacreBLEU
resamples itself, is in ``scoring.py``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .rouge import KINDS, rouge_of_each
from .scoring import Comparison

Array = np.ndarray


class Metric(NamedTuple):
    """How a metric is called, and which way it is better."""

    name: str  # --metric, and the column of a table
    label: str
    unit: str  # of a difference
    higher_is_better: bool
    task: str  # of fairseq, that it fits

    def difference(self, where: str = "") -> str:
        """The label of an axis."""
        words = [f"difference in {self.label}"]
        words += [f"on {where}"] if where else []
        words += [f"({self.unit})"] if self.unit else []
        return " ".join(words)


METRICS = {
    m.name: m
    for m in (
        Metric("bleu", "BLEU", "points", True, "translation"),
        Metric("rouge", "ROUGE-L", "points", True, "translation"),
        Metric("perplexity", "perplexity", "", False, "language_modeling"),
        Metric("accuracy", "accuracy (%)", "points", True, "sentence_prediction"),
        Metric("f1", "F1 (%)", "points", True, "sentence_prediction"),
        Metric("matthews", "Matthews' correlation (%)", "points", True, "sentence_prediction"),
    )
}
LIKE_TRANSLATION = ("translation", "prune_heads", "translation_lev", "denoising")


def metric_of(task: str, name: str | None = None) -> Metric:
    """The metric of that name, or the usual one of a task.

    Raises:
        ValueError: for an unknown one, or one that does not fit the task.
    """
    kind = "translation" if task in LIKE_TRANSLATION else task
    fitting = [metric.name for metric in METRICS.values() if metric.task == kind]
    if not fitting:
        raise ValueError(
            f"--task {task}: give one of {', '.join(sorted({m.task for m in METRICS.values()}))}"
        )
    if name is not None and name not in fitting:
        raise ValueError(f"--metric {name} does not fit --task {task}: {', '.join(fitting)} would")
    return METRICS[name or fitting[0]]


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

    def paired(self, base: Sequence, resamples: int = 1000) -> "Bootstrap | McNemar":
        """A test of systems against this one."""
        kind = McNemar if self.about.name == "accuracy" else Bootstrap
        return kind(self, base, resamples)


class Bootstrap:
    """Paired bootstrap: the same resamples of the samples for the base and every system.

    As in sacreBLEU, p is the share of resamples whose difference lies farther from the mean of all
    than the difference itself lies from zero.
    """

    def __init__(
        self, metric: SummedMetric, base: Sequence, resamples: int = 1000, seed: int = 12345
    ):
        self.metric, self._statistics = metric, metric.statistics(base)
        self.base = metric.score(base)
        samples = len(self._statistics)
        random = np.random.RandomState(seed)  # its stream never changes
        even = np.full(samples, 1 / samples)
        self._counts = random.multinomial(samples, even, size=resamples).astype(float)
        self._resampled = metric.figure(self._counts @ self._statistics)
        self.signature = f"{metric.signature}|test:bootstrap|resamples:{resamples}|seed:{seed}"

    def compare(self, outputs: Sequence) -> Comparison:
        statistics = self.metric.statistics(outputs)
        score = self.metric.score(outputs)
        if np.array_equal(statistics, self._statistics):
            return Comparison(score, score - self.base, 1.0)
        differences = self.metric.figure(self._counts @ statistics) - self._resampled
        farther = np.abs(differences - differences.mean()) >= abs(score - self.base)
        p = (farther.sum() + 1) / (len(differences) + 1)
        return Comparison(score, score - self.base, float(p))


class McNemar:
    """McNemar's exact test: of the samples that only one of the two gets right, is it half each?"""

    def __init__(self, metric: SummedMetric, base: Sequence, resamples: int = 0):
        self.metric, self._right = metric, metric.statistics(base)[:, 0]
        self.base = metric.score(base)
        self.signature = f"{metric.signature}|test:McNemar, exact"

    def compare(self, outputs: Sequence) -> Comparison:
        from scipy.stats import binomtest  # which fairseq brings

        right = self.metric.statistics(outputs)[:, 0]
        gained, lost = (int((d > 0).sum()) for d in (right - self._right, self._right - right))
        p = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        score = self.metric.score(outputs)
        return Comparison(score, score - self.base, float(p))


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
