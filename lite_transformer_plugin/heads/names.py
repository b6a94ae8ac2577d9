"""Names of attention heads: "E:1:3" <-> one head of one attention of any fairseq model.

The notation of Michel et al. (2019): part, layer, head, counted from 1. Parts are E (encoder
self-attention), A (attention of the decoder to the encoder) and D (decoder self-attention). Only
attention heads are heads: the groups of a convolution that share weights have no name.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fairseq.modules import MultiheadAttention
from torch import nn

PARTS = {
    "E": "encoder self-attention",
    "A": "encoder-decoder attention",
    "D": "decoder self-attention",
}
Place = tuple[str, int]  # part and layer: one attention module
# up to four digits, so that a slip in a range is an error and not a list that fills the memory
NUMBERED = r"([^:]+):([1-9]\d{0,3}):([1-9]\d{0,3}(?:[-,][1-9]\d{0,3})*)"


class Head(NamedTuple):
    """One head; ``layer`` and ``head`` count from 1. Prints as ``E:1:3``."""

    part: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.part}:{self.layer}:{self.head}"

    @property
    def place(self) -> Place:
        return self.part, self.layer


class Attention(NamedTuple):
    """One attention module of a model and the names of the heads it still has."""

    part: str
    layer: int
    module: nn.Module
    heads: tuple[int, ...]  # numbers the heads had before any was removed, ascending

    @property
    def place(self) -> Place:
        return self.part, self.layer

    def names(self) -> tuple[Head, ...]:
        return tuple(Head(self.part, self.layer, head) for head in self.heads)


def check_parts(parts: Iterable[str]) -> set[str]:
    """The letters of parts, as a set.

    Raises:
        ValueError: naming one that is no part, and the choice there is.
    """
    wanted = set(parts)
    for part in sorted(wanted - set(PARTS)):
        choices = ", ".join(f"{letter} ({name})" for letter, name in PARTS.items())
        raise ValueError(f"there is no part {part!r}, choose one of {choices}")
    return wanted


def sort_heads(heads: Iterable[Head]) -> list[Head]:
    """Without repetition; E before A before D, then by layer and head."""
    parts = list(PARTS)
    return sorted(set(heads), key=lambda h: (parts.index(h.part), h.layer, h.head))


def parse_heads(text: str) -> list[Head]:
    """Read names such as ``E:1:3 A:6:1,2 D:2:1-4``; sorted, each head once.

    Raises:
        ValueError: naming the piece that is no head.
    """
    return sort_heads(head for piece in text.split() for head in _parse_piece(piece))


def format_heads(heads: Iterable[Head]) -> str:
    """The shortest string that ``parse_heads`` reads as these heads."""
    numbers: dict[Place, list[int]] = {}
    for head in sort_heads(heads):
        numbers.setdefault(head.place, []).append(head.head)
    return " ".join(f"{part}:{layer}:{_ranges(n)}" for (part, layer), n in numbers.items())


def _parse_piece(piece: str) -> Iterator[Head]:
    match = re.fullmatch(NUMBERED, piece, re.ASCII)
    if match is None:
        raise ValueError(
            f"{piece!r} is no head: write PART:LAYER:HEAD, counted from 1, as E:1:3, A:6:1,2 or "
            "D:2:1-4"
        )
    part, layer, numbers = match.groups()
    try:
        check_parts([part])
    except ValueError as error:
        raise ValueError(f"{piece!r}: {error}") from None
    for span in numbers.split(","):
        first, _, last = span.partition("-")
        if "-" in last or (last and int(last) < int(first)):
            raise ValueError(f"{piece!r}: {span!r} is no range of heads, write it as 1-4")
        for head in range(int(first), int(last or first) + 1):
            yield Head(part, int(layer), head)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, neighbours joined: 1,2,3,5 is 1-3,5; two neighbours stay 1,2."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


# --- the heads of a model -------------------------------------------------------------------------


def attentions(model: nn.Module) -> list[Attention]:
    """The attention modules of a model, in the order of their names.

    Works for encoder-decoders (``lite_transformer``, ``transformer``, BART), language models
    (part D) and RoBERTa (part E). A layer without attention, as a convolution's, has no entry.
    """
    encoder = getattr(model, "encoder", None)
    encoder = getattr(encoder, "sentence_encoder", encoder)  # RoBERTa's
    decoder = getattr(model, "decoder", None)
    found = []
    for part, side, name in (
        ("E", encoder, "self_attn"),
        ("A", decoder, "encoder_attn"),
        ("D", decoder, "self_attn"),
    ):
        layers = getattr(side, "layers", None) or ()
        for i in range(len(layers)):  # with LayerDrop, iterating in training leaves some out
            module = _attention_of(getattr(layers[i], name, None))
            if module is not None:
                found.append(Attention(part, i + 1, module, heads_left(module)))
    return found


def _attention_of(module: nn.Module | None) -> nn.Module | None:
    branch = getattr(module, "attention", None)  # the global branch of LSRA
    for candidate in (branch, module):
        if isinstance(candidate, MultiheadAttention) or hasattr(candidate, "heads_left"):
            return candidate
    return None


def heads_left(module: nn.Module) -> tuple[int, ...]:
    """Names of the heads of one attention module: what removal left, else all of them."""
    left = getattr(module, "heads_left", None)
    return tuple(range(1, module.num_heads + 1)) if left is None else tuple(left)


def list_heads(model: nn.Module, parts: Iterable[str] = tuple(PARTS)) -> list[Head]:
    """All heads of these parts of a model, sorted.

    Raises:
        ValueError: for an unknown part.
    """
    wanted = check_parts(parts)
    return [head for a in attentions(model) if a.part in wanted for head in a.names()]


def check_heads(model: nn.Module, heads: Iterable[Head]) -> None:
    """See that the model has these heads.

    Raises:
        ValueError: naming the first head that it has not, and what it has.
    """
    modules = {a.place: a for a in attentions(model)}
    if not modules:
        raise ValueError(f"{type(model).__name__} has no attention heads")
    for head in heads:
        check_parts([head.part])
        if head.place not in modules:
            layers = [layer for part, layer in modules if part == head.part]
            has = f"in layers {_ranges(layers)}" if layers else "in no layer"
            raise ValueError(f"{head}: the model has {PARTS[head.part]} {has}")
        left = modules[head.place].heads
        if head.head not in left:
            has = f"heads {_ranges(list(left))}" if left else "no heads"
            raise ValueError(f"{head}: layer {head.layer} of part {head.part} has {has}")
