"""Whether a difference in a metric of sums is chance; sacreBLEU's own test is in ``scoring.py``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .summed_metrics import SummedMetric

SIGNIFICANT = 0.01  # Michel et al. 2019, section 3


class Comparison(NamedTuple):
    """A system's score, in points what it has more than the base, and how likely that is chance."""

    score: float
    difference: float
    p: float

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT


class Bootstrap:
    """Paired bootstrap: the same resamples of the samples for the base and every system.

    As in sacreBLEU, p is the share of resamples whose difference lies farther from the mean of all
    than the difference itself lies from zero.
    """

    def __init__(
        self, metric: "SummedMetric", base: Sequence, resamples: int = 1000, seed: int = 12345
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

    def __init__(self, metric: "SummedMetric", base: Sequence, resamples: int = 0):
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
