"""`--scoring rouge`: ROUGE of summaries (Lin 2004), by Google's rouge-score package.

F1 in per cent, the mean over the summaries, with Porter's stemmer. ROUGE-L is the summary-level one
(`rougeLsum`), for which both texts are cut into sentences: at line breaks, and behind a full stop,
exclamation mark or question mark that a space follows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeLsum": "ROUGE-L"}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")


def rouge_of_each(hypotheses: Sequence[str], references: Sequence[str]) -> list[dict[str, float]]:
    """F1 in per cent of every summary, by the names of ``KINDS``.

    Raises:
        ValueError: for lists of different lengths, or a reference without a word.
        ModuleNotFoundError: without rouge-score.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} summaries, but {len(references)} references")
    scorer = _scorer()
    for number, reference in enumerate(references, 1):
        if not re.search(r"[a-z0-9]", reference.lower()):
            raise ValueError(
                f"ROUGE needs references: the one of line {number} has no word, {reference!r}"
            )
    return [
        {kind: 100 * score.fmeasure for kind, score in scorer.score(_lines(r), _lines(h)).items()}
        for h, r in zip(hypotheses, references, strict=True)
    ]


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The means of ``rouge_of_each`` over all summaries, which must not be none."""
    return means(rouge_of_each(hypotheses, references))


def means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    if not scores:
        raise ValueError("ROUGE needs summaries: there are none")
    return {kind: fmean(score[kind] for score in scores) for kind in KINDS}


def _lines(text: str) -> str:
    return "\n".join(SENTENCE_END.split(text.strip()))


def _scorer():
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ROUGE needs the rouge-score package: pip install 'lite-transformer-plugin[rouge]'"
        ) from error
    return RougeScorer(list(KINDS), use_stemmer=True)


@dataclass
class RougeConfig(FairseqDataclass):
    pass


@register_scorer("rouge", dataclass=RougeConfig)
class RougeScorer(BaseScorer):
    """What fairseq-generate asks for one number, ROUGE-L, and for a line with all three."""

    def score(self) -> float:
        return rouge(self.pred, self.ref)["rougeLsum"]

    def result_string(self) -> str:
        found = rouge(self.pred, self.ref)
        return ", ".join(f"{name} {found[kind]:.2f}" for kind, name in KINDS.items())
