"""Which heads go first (Michel et al. 2019, sections 3.2 and 4).

A score says how much a head matters: its importance, what a score loses without it, the norm of its
weights, or chance. An order lists heads from the least to the most important.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import nn

from .names import PARTS, Attention, Head, attentions, check_parts, sort_heads

ALL_PARTS = tuple(PARTS)

# --- scores ---------------------------------------------------------------------------------------


def weight_norms(model: nn.Module, parts: Iterable[str] = ALL_PARTS) -> dict[Head, float]:
    """The l1 norm of each head's rows of the query, key and value projections, biases included.

    By this fairseq's own pruner of RoBERTa ranks the heads of one layer. The norm is a sum, so
    across modules it also grows with the channels that a head reads and has. Heads that were
    removed have no score.
    """
    wanted = check_parts(parts)
    scores: dict[Head, float] = {}
    for attention in attentions(model):
        if attention.part in wanted and attention.heads:
            scores.update(zip(attention.names(), _row_norms(attention), strict=True))
    return scores


def _row_norms(attention: Attention) -> list[float]:
    """One for each head that is left: their rows stand in the order of their names."""
    norms = [0.0] * len(attention.heads)
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(attention.module, name)
        for parameter in (projection.weight, projection.bias):
            if parameter is not None:
                rows = parameter.detach().double().abs().reshape(len(norms), -1).sum(1)
                norms = [norm + row for norm, row in zip(norms, rows.tolist(), strict=True)]
    return norms


def random_scores(heads: Iterable[Head], seed: int) -> dict[Head, float]:
    """Scores between 0 and 1 that depend on the seed and the names, not on the order given."""
    draw = random.Random(seed)  # the same numbers on every platform
    return {head: draw.random() for head in sort_heads(heads)}


def ablation_scores(
    scores: Mapping[Head, float], base: float, higher_is_better: bool = True
) -> dict[Head, float]:
    """What is lost when a head alone is removed, in the metric's unit: the paper's "oracle".

    Args:
        scores: of the model without this head.
        base: of the whole model.
    """
    sign = 1 if higher_is_better else -1
    return {head: sign * (base - without) for head, without in scores.items()}


# --- orders ---------------------------------------------------------------------------------------


def by_score(scores: Mapping[Head, float], parts: Iterable[str] = ALL_PARTS) -> list[Head]:
    """The heads of these parts, the least important first; equal ones by their names.

    Raises:
        ValueError: for an unknown part, a score that is no number, and if there is no head.
    """
    wanted = check_parts(parts)
    heads = sort_heads(head for head in scores if head.part in wanted)
    if not heads:
        names = ", ".join(f"{part} ({name})" for part, name in PARTS.items() if part in wanted)
        raise ValueError(f"there is no head of part {names or 'none'} to put in order")
    for head in heads:
        if math.isnan(scores[head]):
            raise ValueError(f"{head}: its score is not a number")
    return sorted(heads, key=scores.__getitem__)


def number_of(share: float, total: int) -> int:
    """How many of ``total`` heads a share is: ceil(total * share), as in the paper.

    What floating point adds does not count: a tenth of 30 heads is 3.

    Raises:
        ValueError: for a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share of heads lies between 0 and 1, not at {share}")
    return math.ceil(total * share - 1e-9)


def to_remove(
    order: Iterable[Head], share: float, minimum: int = 0, already: Iterable[Head] = ()
) -> list[Head]:
    """The first heads of an order, so many that this share of all is gone; see ``first_heads``."""
    order, already = list(order), list(already)
    return first_heads(order, number_of(share, len({*order, *already})), minimum, already)


def first_heads(
    order: Iterable[Head], count: int, minimum: int = 0, already: Iterable[Head] = ()
) -> list[Head]:
    """``count`` heads, those already removed first, then by the order.

    Args:
        order: heads, the least important first: all of a module, but perhaps those removed.
        minimum: leave at least so many heads in each attention module: where no more may go, the
            next in the order go instead.
        already: what was removed before; it stays so and counts.

    Raises:
        ValueError: if so many cannot go, naming the largest share that can.
    """
    removed = list(dict.fromkeys(already))
    waiting = [head for head in dict.fromkeys(order) if head not in set(removed)]
    if minimum < 0:
        raise ValueError(f"at least {minimum} heads a layer: that must not be negative")
    if count < len(removed):
        raise ValueError(f"{len(removed)} heads are removed already, more than {count}")
    possible = [*removed, *_may_go(waiting, minimum)]
    if count > len(possible):
        total = len(removed) + len(waiting)
        raise ValueError(_too_many(count, len(possible), total, minimum))
    return possible[:count]


def _may_go(waiting: Sequence[Head], minimum: int) -> Iterator[Head]:
    """These heads in their order, but for the last ``minimum`` of each module."""
    left = Counter(head.place for head in waiting)
    for head in waiting:
        if left[head.place] > minimum:
            left[head.place] -= 1
            yield head


def _too_many(count: int, possible: int, total: int, minimum: int) -> str:
    share = math.floor(1e4 * possible / max(1, total)) / 1e4  # not rounded up: it must work
    return (
        f"cannot remove {count} of {total} heads and leave {minimum} in each attention module: the "
        f"largest share is {share:g}, which is {possible} heads"
    )


def stepwise(
    measure: Callable[[Sequence[Head]], Mapping[Head, float]],
    counts: Iterable[int],
    minimum: int = 0,
    parts: Iterable[str] = ALL_PARTS,
) -> Iterator[tuple[int, list[Head]]]:
    """Remove heads step by step, and score what is left anew before each step.

    What was removed stays removed. Nothing is measured before a step that removes nothing.

    Args:
        measure: called with the heads removed so far, in that order; returns the scores of the
            others in a model without these. If it always returns the same, heads are scored once.
        counts: how many heads shall be gone after each step, ascending.

    Yields:
        the count and the heads removed by then.

    Raises:
        ValueError: as ``by_score`` and ``first_heads``, and for counts that are not ascending.
    """
    removed: list[Head] = []
    for count in counts:
        if count != len(removed):
            scores = measure(tuple(removed))
            rest = {head: score for head, score in scores.items() if head not in set(removed)}
            removed = first_heads(by_score(rest, parts), count, minimum, removed)
        yield count, list(removed)
