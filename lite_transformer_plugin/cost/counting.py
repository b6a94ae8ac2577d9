"""Mult-Adds and parameters of a built model, part by part, as Wu et al. 2020 count them.

One multiply with its addition counts 1; batch 1; the decoder runs over the whole target at once,
without discount for what its causal mask hides. Biases, norms, softmax, activations and embedding
look-ups are free. A layer over N positions, width d, that looks at M positions, costs

    a linear layer                N * (its weights)
    scores and weighted values    2 * N * M * (channels of its heads)
    a convolution's taps          N * K * (its channels), however an implementation multiplies

Two conventions: `paper` leaves embeddings and output projection out, `full` counts them, with an
adaptive input as if every word were frequent and an adaptive softmax over the whole vocabulary.

The paper's figures in M are met within 0.5 % when the taps are left out. One figure stays open:
the authors' README says 1147M for WikiText-103, 1.6 % more than this count's 1129M at 30 tokens.

A new kind of module is one new rule in `rules.RULES`; a module that has parameters but no
rule is reported in `Cost.uncounted`, never silently taken for free.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from .rules import Lengths, Place, rule_for

CONVENTIONS = ("paper", "full")
PARTS = ("embeddings", "attention", "convolution", "cross-attention", "FFN", "output", "other")
PLACES = ("embeddings", "encoder", "decoder", "output")
NOT_IN_PAPER = ("embeddings", "output")
PHONE_MULT_ADDS, PHONE_PARAMETERS = 500_000_000, 10_000_000  # the paper's mobile setting
VOCABULARY_OUTPUTS = ("output_projection", "adaptive_softmax", "lm_head")


@dataclass(frozen=True)
class Item:
    """One module of the model: what it holds and what it computes."""

    path: str
    side: str
    part: str
    mult_adds: int  # without taps
    taps: int
    parameters: int  # a tied one belongs to the module met first

    @property
    def place(self) -> str:
        return self.part if self.part in NOT_IN_PAPER else self.side


@dataclass(frozen=True)
class Cost:
    """What `count` found. Mult-Adds follow `convention`, with or without convolution taps."""

    items: tuple[Item, ...]
    uncounted: tuple[str, ...]  # modules without a rule, for whoever reads the numbers
    convention: str = "paper"
    taps: bool = True

    def mult_adds_of(self, item: Item) -> int:
        if self.convention == "paper" and item.part in NOT_IN_PAPER:
            return 0
        return item.mult_adds + (item.taps if self.taps else 0)

    @property
    def mult_adds(self) -> int:
        return sum(map(self.mult_adds_of, self.items))

    @property
    def parameters(self) -> int:
        return sum(item.parameters for item in self.items)

    @property
    def parameters_without_embeddings(self) -> int:
        """The paper's #Params: an output projection of its own counts, one tied does not."""
        return sum(item.parameters for item in self.items if item.part != "embeddings")

    def mult_adds_by(self, group: str) -> dict[str, int]:
        """By ``part`` or by ``place``."""
        return self._sums(group, self.mult_adds_of)

    def parameters_by(self, group: str) -> dict[str, int]:
        """By ``part`` or by ``place``."""
        return self._sums(group, lambda item: item.parameters)

    def _sums(self, group: str, value: Callable[[Item], int]) -> dict[str, int]:
        sums = dict.fromkeys(PARTS if group == "part" else PLACES, 0)
        for item in self.items:
            sums[getattr(item, group)] += value(item)
        return sums


def count(
    model: nn.Module, lengths: Lengths | None = None, convention: str = "paper", taps: bool = True
) -> Cost:
    """Count a model, an encoder, a decoder or a single (encoder) layer.

    Raises:
        ValueError: for an unknown convention.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown convention {convention!r}: choose {' or '.join(CONVENTIONS)}")
    lengths = lengths or Lengths()
    items, uncounted = [], []
    place = Place(lengths, queries=lengths.source)
    for found in _walk(model, place, "", set()):
        (items if isinstance(found, Item) else uncounted).append(found)
    if len(getattr(model, "classification_heads", {})) > 0:  # then words are not predicted
        items = [_idle(i) if i.path.split(".")[-1] in VOCABULARY_OUTPUTS else i for i in items]
    return Cost(tuple(items), tuple(uncounted), convention, taps)


def _idle(item: Item) -> Item:
    return replace(item, mult_adds=0, taps=0)


def _walk(module: nn.Module, place: Place, path: str, seen: set[int]) -> Iterator[Item | str]:
    rule = rule_for(module)
    if rule is not None:
        size = _new_parameters(module.parameters(), seen)
        yield Item(path, place.side, place.part, *rule(module, place), size)
        return
    place = place.inside(module)
    own = _new_parameters(module.parameters(recurse=False), seen)
    if own > 0:
        yield Item(path, place.side, place.part, 0, 0, own)
        yield f"{path} ({type(module).__name__}, {own:,} parameters)"
    # not named_children(), which skips a layer that is used twice
    for name, child in module._modules.items():
        if child is not None:
            inner = f"{path}.{name}" if path else name
            yield from _walk(child, place.called(name), inner, seen)


def _new_parameters(parameters: Iterator[torch.nn.Parameter], seen: set[int]) -> int:
    total = 0
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            total += parameter.numel()
    return total


def fits_phone(model: nn.Module) -> bool:
    """Below the paper's mobile limits, as it counts them: at 30 tokens, without embeddings."""
    cost = count(model)
    return cost.mult_adds < PHONE_MULT_ADDS and (
        cost.parameters_without_embeddings < PHONE_PARAMETERS
    )


def stored_bytes(state_dict: dict[str, torch.Tensor]) -> int:
    """Bytes of the tensors in a checkpoint's model, in their own types, tied ones once."""
    storages = {}
    for tensor in state_dict.values():
        if torch.is_tensor(tensor):
            key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
            storages[key] = tensor.numel() * tensor.element_size()
    return sum(storages.values())
