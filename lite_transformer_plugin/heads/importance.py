"""Importance of attention heads: I_h = E_x |dL(x) / d xi_h| (Michel et al. 2019, section 4.1).

xi_h is the gate of head h (``gates.py``), L the loss that the model was trained with, summed over
the target tokens of a sentence x, without dropout. One forward and one backward pass over the data
give all heads at once; no weight gets a gradient.

Letters: T positions, B sentences of a batch, H heads of one attention module.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq.distributed import ModuleProxyWrapper
from fairseq.distributed import utils as distributed_utils
from fairseq.utils import apply_to_sample
from torch import Tensor, nn

from .frozen import Frozen
from .gates import gated
from .names import (
    Attention,
    Head,
    Place,
    attentions,
    check_heads,
    list_heads,
    parse_heads,
    sort_heads,
)

UNITS = {  # what x is
    "sentence": "a sentence, or row of the batch: the paper's equation",
    "token": "a token at the attention's query, padding left out: both of the authors' codes",
    "batch": "a batch: the result depends on how the data are cut into batches",
}
HALF_SCALE = 2.0**7  # of the loss in float16: where fairseq-train --fp16 starts, too


@dataclass(frozen=True)
class Importance:
    """Importance of the heads that a model has."""

    scores: dict[Head, float]
    unit: str  # one of UNITS
    count: dict[str, int]  # of each part: how many units its means are taken over
    normalised: bool = False

    @classmethod
    def of_sums(cls, found: Iterable[Attention], sums: Tensor, unit: str) -> "Importance":
        """From one row: for each attention the sums of its heads, then the number of units."""
        found = list(found)
        pieces = sums.split([len(attention.heads) + 1 for attention in found])
        scores, count = {}, {}
        for attention, piece in zip(found, pieces, strict=True):
            *values, units = piece.tolist()
            count[attention.part] = round(units)
            scores.update(zip(attention.names(), (v / (units or 1.0) for v in values), strict=True))
        return cls(scores, unit, count)

    def normalise(self) -> "Importance":
        """Scores divided by their l2 norm over one attention module; where all are 0 they stay."""
        modules: dict[Place, list[float]] = defaultdict(list)
        for head, score in self.scores.items():
            modules[head.place].append(score)
        norms = {place: math.hypot(*scores) or 1.0 for place, scores in modules.items()}
        scores = {head: score / norms[head.place] for head, score in self.scores.items()}
        return replace(self, scores=scores, normalised=True)


def measure(
    model: nn.Module,
    criterion: nn.Module,
    samples: Iterable[Mapping[str, Any] | None],
    unit: str = "sentence",
    normalise: bool = True,
) -> Importance:
    """The importance of every head of a model over these batches.

    With masks in effect the others' importance is that in the masked model, and a masked head
    scores 0. A removed head has no score.

    Args:
        criterion: called as ``criterion(model, sample, reduce=True)``, returns the summed loss
            first. It should be that of the training, label smoothing included.
        samples: fairseq's batches, perhaps inside its progress bar; empty ones are skipped. Where
            processes share the data each gives its own, if any, and all get the same result.
        unit: one of ``UNITS``. Batching does not change the result for sentence and token.
        normalise: divide by the l2 norm over the heads of each attention module.

    Raises:
        ValueError: for an unknown unit, a model without heads, no or unfit batches, and a loss or
            gradients that are not finite.
    """
    meter = ImportanceMeter(model, criterion, unit)
    for sample in samples:
        meter.update(sample)
    return meter.result(normalise)


class ImportanceMeter:
    """Adds up, batch by batch, what the importance is the mean of; arguments as in ``measure``.

    It works under ``torch.no_grad()``, as in fairseq's validation, and leaves the model as it was.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, unit: str = "sentence"):
        if unit not in UNITS:
            raise ValueError(f"there is no importance per {unit!r}: choose {', '.join(UNITS)}")
        if isinstance(model, ModuleProxyWrapper):
            model = model.module.module  # data-parallel training must not see these passes
        self.model, self.criterion, self.unit = model, criterion, unit
        self.attentions = [a for a in attentions(model) if a.heads]
        if not self.attentions:
            raise ValueError(f"{type(model).__name__} has no attention heads")
        self.frozen = Frozen(model, criterion)
        weight = next(model.parameters())
        self.device = weight.device
        self.gate_type = torch.promote_types(weight.dtype, torch.float)
        # float16 has no gradients below 6e-8; bfloat16 has the range of float32
        self.scale = HALF_SCALE if weight.dtype == torch.float16 else 1.0
        self.totals = {  # sums of a module's heads, and behind them the number of units
            a.place: torch.zeros(len(a.heads) + 1, dtype=torch.double, device=self.device)
            for a in self.attentions
        }

    def update(self, sample: Mapping[str, Any] | None) -> None:
        """Add one batch."""
        if not sample:
            return
        sample = apply_to_sample(lambda tensor: tensor.to(self.device), sample)
        real = {a.part: self._real(sample, a.part) for a in self.attentions}
        for (part, layer), gradient in self._finite_gradients(sample, real).items():
            self.totals[part, layer] += sum_units(gradient, real[part], self.unit)

    def result(self, normalise: bool = True) -> Importance:
        """The mean over all batches of all processes, each of which must ask for it."""
        sums = torch.cat(list(self.totals.values()))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            group = distributed_utils.get_data_parallel_group()
            distributed_utils.all_reduce(sums, group=group)
        importance = Importance.of_sums(self.attentions, sums, self.unit)
        if not all(importance.count.values()):
            raise ValueError("importance needs at least one batch with a token in it")
        return importance.normalise() if normalise else importance

    def _real(self, sample: Mapping[str, Any], part: str) -> Tensor:
        """False where a query of this part's attention is padding, (T, B)."""
        inputs, name, side = sample.get("net_input", {}), "src_tokens", "encoder"
        if part != "E":
            side = "decoder"
            if "prev_output_tokens" in inputs:  # a language model has none
                name = "prev_output_tokens"
        if name not in inputs or inputs[name].dim() != 2:
            raise ValueError(f"importance needs batches of text, with {name} as a matrix")
        return inputs[name].ne(getattr(self.model, side).dictionary.pad()).t()

    def _finite_gradients(
        self, sample: Mapping[str, Any], real: Mapping[str, Tensor]
    ) -> dict[Place, Tensor]:
        """In float16 an overflow is tried again with a smaller loss, as in fairseq's training."""
        while True:
            gradients = self._gradients(sample, real)
            if torch.cat([g.flatten() for g in gradients.values()]).isfinite().all():
                return gradients
            if self.scale <= 1.0:
                raise ValueError(
                    "the loss or its gradients are not finite: use float32 if this was half "
                    "precision, else see whether the checkpoint holds NaN"
                )
            self.scale /= 2

    def _gradients(
        self, sample: Mapping[str, Any], real: Mapping[str, Tensor]
    ) -> dict[Place, Tensor]:
        """dL / d xi for the gates of every single token, (T, B, H) for each module.

        One gate for many tokens has the sum of their gradients, so all units can be had from this.
        """
        options = dict(dtype=self.gate_type, device=self.device, requires_grad=True)
        gates = {
            a.place: torch.ones(*real[a.part].shape, len(a.heads), **options)
            for a in self.attentions
        }
        with self.frozen, gated(self.model, gates), torch.enable_grad():
            loss = self.criterion(self.model, sample, reduce=True)[0]
            # into .grad: the only way that passes through checkpointed activations
            (loss.sum() * self.scale).backward()
        return {
            place: torch.zeros_like(gate) if gate.grad is None else gate.grad.double() / self.scale
            for place, gate in gates.items()
        }


def sum_units(gradient: Tensor, real: Tensor, unit: str) -> Tensor:
    """Sums of |gradient| over one batch, and behind them the number of units: (H + 1).

    Args:
        gradient: of the gates of every token, (T, B, H).
        real: false at padding, (T, B).
    """
    gradient = gradient.double().masked_fill(~real.unsqueeze(-1), 0.0)
    if unit == "token":
        total, count = gradient.abs().sum((0, 1)), real.sum()
    elif unit == "sentence":
        total, count = gradient.sum(0).abs().sum(0), real.any(0).sum()
    else:
        total, count = gradient.sum((0, 1)).abs(), real.any()
    return torch.cat([total, count.to(total).view(1)])


# --- rows of a file -------------------------------------------------------------------------------


def rows(importance: Importance) -> list[dict[str, Any]]:
    """``{"head": "E:1:3", "importance": 0.25}`` for every head, sorted."""
    scores = importance.scores
    return [{"head": str(head), "importance": scores[head]} for head in sort_heads(scores)]


def read_rows(rows: Iterable[Mapping[str, Any]], model: nn.Module) -> dict[Head, float]:
    """The importance of the heads of this model, from what ``rows`` made.

    Raises:
        ValueError: if a row has no head or no finite figure, or if the heads are not those of the
            model.
    """
    scores = dict(map(_read_row, rows))
    missing = [head for head in list_heads(model) if head not in scores]
    if missing:
        raise ValueError(f"importance file of another model: it has no figure for {missing[0]}")
    try:
        check_heads(model, scores)
    except ValueError as error:
        raise ValueError(f"importance file of another model: {error}") from error
    return scores


def _read_row(row: Mapping[str, Any]) -> tuple[Head, float]:
    try:
        [head] = parse_heads(row["head"])
        score = float(row["importance"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f'{row} is no importance: write {{"head": "E:1:3", "importance": 0.25}}'
        ) from error
    if not math.isfinite(score):
        raise ValueError(f"the importance of {head} is {score}: measure it again")
    return head, score
