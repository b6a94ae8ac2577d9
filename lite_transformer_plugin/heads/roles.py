"""What heads look at: figures of their attention, and the roles that follow from them.

Voita et al. 2019, section 5: positional heads, heads of rare words, confidence. Michel et al. 2019,
appendix: entropy, offset and distance of attention. All means are over the queries of a data set
that are no padding, in teacher-forced passes; what is counted otherwise says ``FIGURES``.

A decoder's self-attention looks back only: no offset is above 0. Its inputs are shifted, so that
offset 0 is the word before the one that is predicted, and its end of sentence is the first input.
In encoder-decoder attention an offset is the source position less the target position.

Letters: B sentences, H heads of one attention module, T queries, S keys.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from .attention_maps import Seen, sum_over_processes
from .names import Head, Place, attentions, sort_heads

FIGURES = {
    "entropy": "of the weights, in nats",
    "normalised_entropy": "entropy / logarithm of the number of keys in sight, where it is above 1",
    "confidence": "largest weight on a key other than the end of sentence; not of queries at it",
    "mean_offset": "key position - query position, in tokens, weighted by attention",
    "mean_distance": "|key position - query position|, in tokens, weighted by attention",
    "share_previous": "of maxima at offset -1, where there is such a key",
    "share_next": "of maxima at offset +1, where there is such a key; none in a decoder",
    "share_rarest": "of maxima on the rarest token in sight, where not all are equally rare",
    "share_rarest_uncommon": "the same, where the rarest is none of the most frequent tokens",
    "share_end": "of maxima on the end of sentence, where it is in sight",
}
POSITIONAL = 0.9  # Voita et al. 2019, section 5.2
FREQUENT = 500  # Voita et al. 2019, section 5.4: the most frequent tokens
# they name no threshold: 66 % of maxima is what they found where it was clearest
RARE = 0.5
KINDS = ("positional -1", "positional +1", "rare words", "syntactic")
NEVER_RAREST = torch.iinfo(torch.int64).max

Figures = dict[str, float | None]  # by the names of FIGURES; None where nothing was to be counted


class FigureMeter:
    """A watcher (see ``attention_maps.watch``) that adds up the figures of every head."""

    def __init__(self, model: nn.Module, frequent: int = FREQUENT):
        """
        Args:
            model: with the dictionaries of its training data, whose counts say what is rare.
            frequent: how many of the most frequent tokens ``share_rarest_uncommon`` leaves out.
        """
        device = next(model.parameters()).device
        self.attentions = [a for a in attentions(model) if a.heads]
        self.dictionaries, self.counts = {}, {}
        for part in {a.part for a in self.attentions}:
            side = model.decoder if part == "D" else model.encoder
            self.dictionaries[part] = side.dictionary
            counts, common = word_counts(side.dictionary, frequent)
            self.counts[part] = counts.to(device), common
        self.totals: dict[Place, Tensor] = {  # a row for each figure, and behind the sums a count
            a.place: torch.zeros(len(FIGURES), len(a.heads) + 1, dtype=torch.double, device=device)
            for a in self.attentions
        }

    def __call__(self, seen: Seen) -> None:
        counts, common = self.counts[seen.attention.part]
        end = self.dictionaries[seen.attention.part].eos()
        self.totals[seen.attention.place] += sum_figures(seen, counts, common, end)

    def result(self) -> dict[Head, Figures]:
        """Means over all processes, each of which must ask for them; heads are sorted.

        Raises:
            ValueError: if nothing was seen.
        """
        found = {}
        sums = sum_over_processes(self.totals)
        for attention in self.attentions:
            *columns, counts = sums[attention.place].t().tolist()
            if not counts[0]:
                raise ValueError("roles need at least one batch with a token in it")
            for head, column in zip(attention.names(), columns, strict=True):
                means = [s / n if n else None for s, n in zip(column, counts, strict=True)]
                found[head] = dict(zip(FIGURES, means, strict=True))
        return {head: found[head] for head in sort_heads(found)}


def word_counts(dictionary: Dictionary, frequent: int = FREQUENT) -> tuple[Tensor, int]:
    """How often each token (V) occurs in the training data, and how often the last frequent one.

    The unknown word occurs never, so it is the rarest of all; beginning and end of sentence and
    padding are no words and never the rarest.
    """
    counts = torch.tensor(dictionary.count, dtype=torch.int64)
    counts[dictionary.unk()] = 0
    for index in (dictionary.bos(), dictionary.pad(), dictionary.eos()):
        counts[index] = NEVER_RAREST
    words = counts[counts != NEVER_RAREST].sort(descending=True).values
    return counts, int(words[frequent - 1]) if len(words) > frequent else 0


# --- figures of one batch -------------------------------------------------------------------------


def sum_figures(seen: Seen, counts: Tensor, common: int, end: int) -> Tensor:
    """Sums of the figures over one batch, and behind them what to divide by: (F, H + 1).

    Args:
        counts: of the tokens (V), as ``word_counts`` returns them with ``common``.
        end: the token at the end of sentences.
    """
    offset, visible = sight(seen)
    values = {
        **_spread(seen.weights, offset, visible),
        **_confidence(seen, visible, end),
        **_maxima(seen, offset, visible, counts, common, end),
    }
    rows = []
    for value, counted in (values[name] for name in FIGURES):
        total = value.double().masked_fill(~counted[:, None], 0.0).sum((0, 2))
        rows.append(torch.cat([total, counted.sum().to(total).view(1)]))
    return torch.stack(rows)


def sight(seen: Seen) -> tuple[Tensor, Tensor]:
    """Key position - query position, counted without padding, and which keys a query may see.

    Both are (B, T, S); at padding nothing is visible.
    """
    position = [real.long().cumsum(1) for real in (seen.real_queries, seen.real_keys)]
    offset = position[1][:, None, :] - position[0][:, :, None]
    visible = seen.real_queries[:, :, None] & seen.real_keys[:, None, :]
    if seen.attention.part == "D":
        visible = visible & (offset <= 0)
    return offset, visible


# Below each figure is a pair: its values (B, H, T), and at which queries (B, T) it is counted.
Counted = dict[str, tuple[Tensor, Tensor]]


def _spread(weights: Tensor, offset: Tensor, visible: Tensor) -> Counted:
    keys = visible.sum(2)
    entropy = torch.special.entr(weights).sum(3)
    offset = offset.to(weights)
    return {
        "entropy": (entropy, keys > 0),
        "normalised_entropy": (entropy / keys.clamp(min=2).log()[:, None], keys > 1),
        "mean_offset": (torch.einsum("bhts,bts->bht", weights, offset), keys > 0),
        "mean_distance": (torch.einsum("bhts,bts->bht", weights, offset.abs()), keys > 0),
    }


def _confidence(seen: Seen, visible: Tensor, end: int) -> Counted:
    word = seen.keys != end
    largest = seen.weights.masked_fill(~word[:, None, None], 0.0).amax(3)
    counted = (visible & word[:, None]).any(2) & (seen.queries != end)
    return {"confidence": (largest, counted)}


def _maxima(
    seen: Seen, offset: Tensor, visible: Tensor, counts: Tensor, common: int, end: int
) -> Counted:
    """How often the maximum is on one of the keys that are looked for, (B, T, S)."""
    top = seen.weights.argmax(3, keepdim=True)
    rarest, rare, uncommon = _rarest(counts[seen.keys], visible, common)
    wanted = {
        "share_previous": offset == -1,
        "share_next": offset == 1,
        "share_rarest": rarest,
        "share_end": (seen.keys == end)[:, None].expand_as(visible),
    }
    found = {}
    for name, keys in wanted.items():
        hits = keys[:, None].expand_as(seen.weights).gather(3, top).squeeze(3)
        found[name] = (hits, (keys & visible).any(2))
    hits = found["share_rarest"][0]
    return found | {
        "share_rarest": (hits, rare),
        "share_rarest_uncommon": (hits, rare & uncommon),
    }


def _rarest(counts: Tensor, visible: Tensor, common: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rarest keys in sight, all that tie (B, T, S); where others are less rare; and where even
    the most frequent tokens are (B, T)."""
    words = visible & (counts != NEVER_RAREST)[:, None]
    counts = counts[:, None].expand_as(visible)
    low = counts.masked_fill(~words, NEVER_RAREST).amin(2)
    high = counts.masked_fill(~words, -1).amax(2)
    return words & (counts == low[:, :, None]), low < high, low < common


# --- roles ----------------------------------------------------------------------------------------


def kinds_of(figures: Mapping[str, float | None]) -> list[str]:
    """Which of ``KINDS`` a head's figures show; syntactic heads need parses (``syntax.py``)."""
    least = {
        "positional -1": ("share_previous", POSITIONAL),
        "positional +1": ("share_next", POSITIONAL),
        "rare words": ("share_rarest_uncommon", RARE),
    }
    return [kind for kind, (name, share) in least.items() if (figures[name] or 0.0) >= share]


def rows(
    figures: Mapping[Head, Figures],
    importance: Mapping[Head, float] | None = None,
    relations: Mapping[Head, Iterable[str]] | None = None,
) -> list[dict[str, Any]]:
    """A row for every head, sorted: its importance if it is known, its figures, its roles.

    Args:
        relations: what the syntactic heads follow, from ``syntax.relations_of``; without it there
            were no parses.
    """
    found = []
    for head in sort_heads(figures):
        known = {} if importance is None else {"importance": importance.get(head)}
        kinds = kinds_of(figures[head])
        followed = list((relations or {}).get(head, ()))
        row = {"head": str(head), **known, **figures[head]}
        row["roles"] = "; ".join([*kinds, "syntactic"] if followed else kinds)
        found.append(row if relations is None else row | {"relations": "; ".join(followed)})
    return found


def most_important(importance: Mapping[Head, float], share: float = 0.25) -> list[Head]:
    """The most important quarter of the heads, at least one; ties go by name."""
    order = sorted(sort_heads(importance), key=lambda head: -importance[head])
    return order[: math.ceil(share * len(order))]
