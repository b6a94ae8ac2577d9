"""Syntactic heads: whose largest weight is on the word at the other end of a dependency.

Voita et al. 2019, section 5.3. The paper counts each relation in both directions, leaves the end of
sentence out, and calls a head syntactic if its share of hits is 10 % above that of the best fixed
offset between the two words; here these are points, so that 45 % beats 35 %, and 38.5 % does not.

Attention to a word is the sum over its pieces, attention from a word the mean over its pieces (as
in Clark et al. 2019). Letters: B sentences, H heads, T pieces, W words, N arcs, R relations.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attention_maps import Seen, sum_over_processes
from .names import Head, attentions, parse_heads
from .parses import Parse

MARGIN = 0.1  # above the best fixed offset
LEAST_COUNT = 100  # arcs: a share of fewer is too much a matter of chance
DIRECTIONS = ("to governor", "to dependent")  # where a head looks from the other word


class SyntaxMeter:
    """A watcher (see ``attention_maps.watch``) of encoder self-attention."""

    def __init__(self, model: nn.Module, parses: Sequence[Parse], owners: Sequence[Sequence[int]]):
        """
        Args:
            parses: of all sentences of the data set, by their numbers in it.
            owners: the word of each of their pieces, from ``parses.match``.

        Raises:
            ValueError: for a model without encoder self-attention, or parses without a dependency.
        """
        device = next(model.parameters()).device
        self.attentions = [a for a in attentions(model) if a.heads and a.part == "E"]
        if not self.attentions:
            raise ValueError("parses are for encoder self-attention, which this model has not")
        self.parses, self.owners, self.dictionary = parses, owners, model.encoder.dictionary
        self.relations = sorted({arc.relation for parse in parses for arc in parse.arcs})
        if not self.relations:
            raise ValueError("the parses have no dependency between two words")
        self.number = {relation: i for i, relation in enumerate(self.relations)}
        self.longest = max(len(parse.words) for parse in parses)

        def zeros(*size: int) -> Tensor:
            return torch.zeros(len(self.relations), *size, dtype=torch.double, device=device)

        self.totals: dict[Any, Tensor] = {a.place: zeros(2, len(a.heads)) for a in self.attentions}
        self.totals["offsets"] = zeros(2 * self.longest + 1)

    def __call__(self, seen: Seen) -> None:
        if seen.attention.part != "E":
            return
        numbers = seen.numbers.tolist()
        pieces, words = self._pieces_of_words(seen, numbers)
        arcs = self._arcs(numbers, words)
        if not len(arcs):
            return
        sentence, dependent, governor, relation = arcs.t()
        if seen.attention.place == self.attentions[0].place:  # they are the same in every layer
            offset = governor - dependent + self.longest
            ones = torch.ones(len(arcs), dtype=torch.double, device=arcs.device)
            self.totals["offsets"].index_put_((relation, offset), ones, accumulate=True)
        largest, top = word_attention(seen.weights, pieces).max(3)  # B x H x W
        ends = ((dependent, governor), (governor, dependent))
        for direction, (origin, target) in enumerate(ends):
            looked = top[sentence, :, origin] == target[:, None]  # N x H
            hits = (looked & (largest[sentence, :, origin] > 0)).double()
            self.totals[seen.attention.place][:, direction].index_add_(0, relation, hits)

    def _pieces_of_words(self, seen: Seen, numbers: Sequence[int]) -> tuple[Tensor, list[set[int]]]:
        """Ones (B, W, T) where a piece belongs to a word, and the words that have pieces."""
        special = [self.dictionary.eos(), self.dictionary.bos()]
        real = seen.real_keys & ~torch.isin(seen.keys, torch.tensor(special).to(seen.keys))
        owners = [self.owners[number] for number in numbers]
        size = (*seen.keys.shape, max(len(self.parses[number].words) for number in numbers))
        belongs = seen.weights.new_zeros(size)
        where = real.nonzero()
        word = torch.tensor([w for sentence in owners for w in sentence]).to(where)
        belongs[where[:, 0], where[:, 1], word] = 1.0
        return belongs.transpose(1, 2), [set(sentence) for sentence in owners]

    def _arcs(self, numbers: Sequence[int], words: Sequence[set[int]]) -> Tensor:
        """Place in the batch, dependent, governor and relation of each arc, (N, 4)."""
        found = [
            (place, arc.dependent, arc.governor, self.number[arc.relation])
            for place, number in enumerate(numbers)
            for arc in self.parses[number].arcs
            if arc.dependent in words[place] and arc.governor in words[place]
        ]
        return torch.tensor(found, device=self.totals["offsets"].device).view(-1, 4)

    def result(self) -> list[dict[str, Any]]:
        """A row for each relation, direction and head; every process must ask for it."""
        sums = sum_over_processes(self.totals)
        offsets = sums["offsets"]
        counts, best = offsets.sum(1).tolist(), offsets.max(1)
        rows = []
        for i in [i for i in range(len(counts)) if counts[i]]:
            known = {
                "baseline": best.values[i].item() / counts[i],
                "count": round(counts[i]),
            }
            for direction, toward in enumerate(DIRECTIONS):
                offset = (best.indices[i].item() - self.longest) * (-1 if direction else 1)
                for attention in self.attentions:
                    hits = sums[attention.place][i, direction].tolist()
                    for head, hit in zip(attention.names(), hits, strict=True):
                        pair = {"relation": self.relations[i], "direction": toward}
                        figures = {"head": str(head), "share": hit / counts[i]}
                        rows.append(pair | figures | known | {"baseline_offset": offset})
        return rows


def word_attention(weights: Tensor, pieces: Tensor) -> Tensor:
    """Attention between words, (B, H, W, W), from weights (B, H, T, T) of pieces (B, W, T)."""
    to_words = weights @ pieces.transpose(1, 2)[:, None]
    return (pieces / pieces.sum(2, keepdim=True).clamp(min=1))[:, None] @ to_words


def is_syntactic(row: Mapping[str, Any], least: int = LEAST_COUNT) -> bool:
    return row["count"] >= least and row["share"] >= row["baseline"] + MARGIN


def relations_of(
    rows: Iterable[Mapping[str, Any]], least: int = LEAST_COUNT
) -> dict[Head, list[str]]:
    """The relations that each syntactic head follows, those that beat the baseline most first."""
    rows = sorted(rows, key=lambda row: row["baseline"] - row["share"])
    found: dict[Head, list[str]] = {}
    for row in (row for row in rows if is_syntactic(row, least)):
        [head] = parse_heads(row["head"])
        found.setdefault(head, []).append(f"{row['relation']} {row['direction']}")
    return found
