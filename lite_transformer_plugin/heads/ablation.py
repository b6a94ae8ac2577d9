"""Every head alone removed, and every head alone left (Michel et al. 2019, section 3).

What a model loses is measured in BLEU or another metric, and whether that is chance by a paired
test.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import nn

from ..evaluation import Translator, share
from ..forward_passes import ForwardPass
from ..metrics import METRICS, Metric
from ..report import format_table
from ..scoring import Bleu
from ..significance import Comparison
from ..summed_metrics import SummedMetric
from .gates import masked
from .names import PARTS, Head, Place, attentions, check_heads, list_heads, sort_heads

KINDS = {
    "one": "without one head",
    "all-but-one": "with one head left in a layer",
}
ALL_PARTS = tuple(PARTS)


class Ablation(NamedTuple):
    """What a score becomes when one head is masked, or all but one of its attention module.

    ``results`` has for each head the score of the model, its difference to ``base``, the score of
    the whole model, and the p-value of that difference.
    """

    kind: str  # of KINDS
    base: float
    results: dict[Head, Comparison]
    signature: str  # how the score was counted and tested
    metric: Metric = METRICS["bleu"]

    def rows(self) -> list[dict[str, Any]]:
        """One row a head, sorted: its name, and figures."""
        return [
            result_row(head, self.results[head], self.metric) for head in sort_heads(self.results)
        ]

    def best(self) -> dict[Place, Head]:
        """For each attention module the head with the best score, the first of equal ones."""
        sign = 1 if self.metric.higher_is_better else -1
        best: dict[Place, Head] = {}
        for head in sort_heads(self.results):
            rival = best.setdefault(head.place, head)
            if sign * self.results[head].score > sign * self.results[rival].score:
                best[head.place] = head
        return best


def result_row(head: Head, result: Comparison, metric: Metric) -> dict[str, Any]:
    """The row of one head, as ``Ablation.rows`` has it."""
    score, difference, p = result
    return {"head": str(head), metric.name: score, "difference": difference, "p": p}


# --- measuring ------------------------------------------------------------------------------------


def ablate(
    translator: Translator | ForwardPass,
    scored: Bleu | SummedMetric,
    kind: str = "one",
    parts: Iterable[str] = ALL_PARTS,
    known: Mapping[Head, Comparison] | None = None,
    on_result: Callable[[Head, Comparison], None] | None = None,
    resamples: int = 1000,
) -> Ablation:
    """Run over the split once for every head, and once with the whole model.

    Several processes share the heads, and all return the same. Heads of the decoder reuse the
    encoder's output of the whole model.

    Args:
        translator: of the model, on a split.
        scored: the metric, with the split's references if it needs any.
        kind: "one" masks a head alone, "all-but-one" all others of its attention module.
        known: results of an earlier run that was stopped; the same on every process.
        on_result: is given each new result as soon as it is there, on the process that has it.
        resamples: of a paired bootstrap.

    Raises:
        ValueError: for another kind, an unknown part, a head in ``known`` that the model has not,
            and a model without heads in these parts.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no ablation {kind!r}, choose one of {', '.join(KINDS)}")
    heads = _heads(translator.model, parts)
    results = dict(known or {})
    check_heads(translator.model, results)
    test = scored.paired(translator.run(keep_encoder=True, shared=True), resamples)

    def work(head: Head) -> Comparison:
        with _without(translator.model, kind, head):
            outputs = translator.run(keep_encoder=head.part != "E")
        result = test.compare(outputs)
        if on_result is not None:
            on_result(head, result)
        return result

    missing = [head for head in heads if head not in results]
    results.update(zip(missing, share(missing, work), strict=True))
    kept = {head: results[head] for head in heads}
    return Ablation(kind, test.base, kept, test.signature, scored.about)


def _heads(model: nn.Module, parts: Iterable[str]) -> list[Head]:
    parts = list(parts)
    heads = list_heads(model, parts)
    if not heads:
        named = ", ".join(PARTS[part] for part in parts)
        raise ValueError(f"{type(model).__name__} has no heads of {named}: nothing to ablate")
    return heads


def _without(model: nn.Module, kind: str, head: Head) -> AbstractContextManager[None]:
    """Mask this head, or the others of its attention module, of which there may be none."""
    module = next(a for a in attentions(model) if a.place == head.place)
    others = [name for name in module.names() if name != head]
    heads = [head] if kind == "one" else others
    return masked(model, heads) if heads else nullcontext()


# --- tables ---------------------------------------------------------------------------------------


def format_ablation(ablation: Ablation) -> str:
    """Tables of differences, one for each part, in the layout of the paper's appendix.

    Rows are layers, columns heads; * marks what is significant (p < 0.01). With one head left
    there is one more, the paper's table 2: for each layer the best of its heads.
    """
    parts = [part for part in PARTS if any(head.part == part for head in ablation.results)]
    label = ablation.metric.label
    title = f"{label} {KINDS[ablation.kind]}, difference to {ablation.base:.2f} (* p < 0.01)"
    tables = [f"{part}, {PARTS[part]}\n{_table(ablation, part)}" for part in parts]
    if ablation.kind == "all-but-one":
        tables.append(f"best head of each layer\n{_best_table(ablation, parts)}")
    return "\n\n".join([title, *tables])


def _table(ablation: Ablation, part: str) -> str:
    heads = [head for head in ablation.results if head.part == part]
    numbers = sorted({head.head for head in heads})
    rows = [["layer", *map(str, numbers)]]
    for layer in sorted({head.layer for head in heads}):
        cells = [_cell(ablation.results.get(Head(part, layer, number))) for number in numbers]
        rows.append([str(layer), *cells])
    return format_table(rows)


def _best_table(ablation: Ablation, parts: Sequence[str]) -> str:
    best = ablation.best()
    rows = [["layer", *parts]]
    for layer in sorted({layer for _, layer in best}):
        chosen = [best.get((part, layer)) for part in parts]
        rows.append([str(layer), *(_cell(ablation.results.get(head)) for head in chosen)])
    return format_table(rows)


def _cell(result: Comparison | None) -> str:
    """A space stands where others have their mark, so that the figures are in line."""
    if result is None:
        return ""
    return f"{result.difference:+.2f}{'*' if result.significant else ' '}"


# --- two sets -------------------------------------------------------------------------------------


class Correlation(NamedTuple):
    """Pearson's r of two sets' differences over the same heads, and its two-sided p-value."""

    r: float
    p: float
    heads: int


def correlate(one: Ablation, other: Ablation) -> Correlation:
    """Do the same heads matter on other data? (The paper's section 3.4.)

    Raises:
        ValueError: for ablations of another kind or of other heads, of fewer than three heads, or
            with one difference throughout.
    """
    from scipy.stats import pearsonr  # which fairseq brings

    _check_pair(one, other)
    heads = sort_heads(one.results)
    pair = [[ablation.results[head].difference for head in heads] for ablation in (one, other)]
    if len(heads) < 3 or any(len(set(differences)) == 1 for differences in pair):
        raise ValueError("a correlation needs three heads or more that differ in what they cost")
    found = pearsonr(*pair)
    return Correlation(float(found.statistic), float(found.pvalue), len(heads))


def tested_elsewhere(chosen_on: Ablation, tested_on: Ablation) -> list[dict[str, Any]]:
    """For each layer the head that is best on one set, and what it does on the other.

    The paper's tables 5 and 6, which leave one head in a layer. Figures of the set the heads were
    tested on have their plain names.

    Raises:
        ValueError: for ablations of another kind or of other heads.
    """
    _check_pair(chosen_on, tested_on)
    rows = []
    for head in chosen_on.best().values():
        row = result_row(head, tested_on.results[head], tested_on.metric)
        rows.append(row | {"difference_where_chosen": chosen_on.results[head].difference})
    return rows


def _check_pair(one: Ablation, other: Ablation) -> None:
    if one.kind != other.kind or set(one.results) != set(other.results):
        raise ValueError("the two ablations are of different kinds or of different heads")
