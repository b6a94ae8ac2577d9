"""BLEU, and whether a difference in it is chance: sacreBLEU's, of many systems on one split."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from .metrics import METRICS
from .significance import Comparison


class Bleu:
    """Corpus BLEU by sacreBLEU, of any number of systems against the same references."""

    about = METRICS["bleu"]

    def __init__(self, references: Sequence[str], tokenize: str = "13a", lowercase: bool = False):
        """
        Args:
            tokenize: sacreBLEU's name of a tokeniser; "none" for text that is tokenised.

        Raises:
            ValueError: if there are no references.
        """
        if not references or None in references:
            raise ValueError("BLEU needs references: the split has no target side, or is empty")
        self.metric = BLEU(lowercase=lowercase, tokenize=tokenize, references=[list(references)])

    @classmethod
    def from_config(cls, references: Sequence[str], scoring: Any) -> "Bleu":
        """As fairseq's ``--scoring sacrebleu`` and its options say; else sacreBLEU's default.

        Raises:
            ValueError: as above, and for an option that is not supported here.
        """
        if getattr(scoring, "_name", None) != "sacrebleu":
            return cls(references)
        if scoring.sacrebleu_char_level:
            raise ValueError("--sacrebleu-char-level: give --sacrebleu-tokenizer char instead")
        return cls(references, str(scoring.sacrebleu_tokenizer), scoring.sacrebleu_lowercase)

    def paired(self, base: Sequence[str], resamples: int = 1000) -> "PairedBootstrap":
        """A test of systems against this one."""
        return PairedBootstrap(self, base, resamples)

    def score(self, texts: Sequence[str]) -> float:
        return self.metric.corpus_score(texts, None).score

    @property
    def signature(self) -> str:
        return self.metric.get_signature().format()


class PairedBootstrap:
    """Compare any number of systems with one base by sacreBLEU's paired bootstrap resampling."""

    def __init__(
        self, bleu: Bleu, base: Sequence[str], resamples: int = 1000, seed: int = 12345
    ) -> None:
        """
        Args:
            base: texts of the base, one for each reference.
            seed: of the resamples, the same for every system; sacreBLEU's default.

        Raises:
            ValueError: for a seed below 1, which sacreBLEU would not obey.
        """
        if seed < 1:
            raise ValueError(f"the seed of the resamples ({seed}) must be at least 1")
        self._base = ("base", list(base))
        with _sacrebleu(seed):
            metrics = {"BLEU": bleu.metric}
            self._test = PairedTest([self._base], metrics, None, "bs", n_samples=resamples)
        self.base = bleu.score(self._base[1])
        self.signature = self._test()[0]["BLEU"].format()

    def compare(self, texts: Sequence[str]) -> Comparison:
        """p is 1 for texts that score like the base on every resample, as equal ones do.

        sacreBLEU counts the resamples beyond the difference; where all are equal it finds none,
        and would call no difference a significant one.
        """
        # the test keeps what it counted of the base
        self._test.named_systems = [self._base, ("system", list(texts))]
        with _sacrebleu():
            base, system = self._test()[1]["BLEU"]
        alike = (system.score, system.mean, system.ci) == (base.score, base.mean, base.ci)
        p = 1.0 if alike else system.p_value
        return Comparison(system.score, system.score - base.score, p)


@contextmanager
def _sacrebleu(seed: int | None = None) -> Iterator[None]:
    """sacreBLEU with this seed, which it reads from the environment, and without its progress."""
    log, environment = logging.getLogger("sacrebleu"), os.environ.copy()
    level = log.level
    log.setLevel(logging.ERROR)
    if seed is not None:
        os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        log.setLevel(level)
        if seed is not None:
            os.environ.pop("SACREBLEU_SEED")
            os.environ.update(environment)
