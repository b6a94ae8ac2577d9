"""`--criterion head_mask`: label-smoothed cross entropy, seen through the gates of heads.

In validation it finds how important the heads are (Michel et al. 2019); with --head-l0 it learns
in training which of them are needed (Voita et al. 2019).
"""
# ruff: noqa: UP045  (fairseq reads typing's Optional only)

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from ..heads.closed import Switch
from ..heads.dynamics import SUMS, sums_of
from ..heads.importance import UNITS, ImportanceMeter
from ..heads.learned_gates import OPEN, SPEED, LearnedGates
from ..tasks.prune_heads import PruneHeadsTask

logger = logging.getLogger(__name__)

NONE = "none"
PASSES = "gated_passes"


def _flag(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass
class HeadMaskConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """What is added to the loss, and what is measured beside it."""

    head_l0: Optional[float] = _flag(
        None,
        "learn gates of the heads: weight of the penalty, the expected number of open heads in an "
        "attention, against the loss per token; 0.01 to 0.3 in the paper",
    )
    head_l0_init: float = _flag(OPEN, "with --head-l0, log_a of every gate at first")
    head_l0_speed: float = _flag(
        SPEED, "with --head-l0, learning rate of the gates as a multiple of --lr, with Adam"
    )
    validation_importance: ChoiceEnum([*UNITS, NONE]) = _flag(
        "sentence",
        "importance of the heads in validation is the mean over these; none: it is not measured",
    )


@register_criterion("head_mask", dataclass=HeadMaskConfig)
class HeadMaskCriterion(LabelSmoothedCrossEntropyCriterion):
    """Needs the task ``prune_heads``, which hands it the model and tells it when to measure.

    Its loss is that of label_smoothed_cross_entropy, and so is what it says in validation. Gates
    are drawn for every pass in training; in all others a head is open or closed, as in the
    checkpoints.

    Raises:
        ValueError: with another task, a model without heads, or flags that make no sense.
    """

    def __init__(
        self,
        task: FairseqTask,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        head_l0: float | None = None,
        head_l0_init: float = OPEN,
        head_l0_speed: float = SPEED,
        validation_importance: str = "sentence",
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if not isinstance(task, PruneHeadsTask) or task.model is None:
            raise ValueError(
                "--criterion head_mask needs --task prune_heads, which hands it the model's heads"
            )
        _check(head_l0, head_l0_init, head_l0_speed)
        self.weight_of_penalty = head_l0
        self.unit = str(validation_importance)
        self.recording = False  # until the task says so
        self.gates = None
        if head_l0 is not None:
            self.gates = LearnedGates(task.model, head_l0_init, head_l0_speed)
            self.switch = Switch(task.model)

    def forward(
        self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Loss, sample size and what is logged, as in fairseq."""
        if self.gates is not None:
            self._set_gates()
        if self.recording and not self.training:
            return self._with_importance(model, sample)
        loss, size, logged = super().forward(model, sample, reduce)
        if self.training and self.gates is not None:
            # fairseq divides gradients by the sum of sizes: the penalty shall not depend on it
            penalty = self.weight_of_penalty * self.gates.expected_open()
            loss = loss + size * penalty
            logged |= self._figures(penalty)
        return loss, size, logged

    def _set_gates(self) -> None:
        if self.training:
            self.switch.set(self.gates.draw())
        else:
            self.switch.mask(self.gates.closed())

    def release(self) -> None:
        """The backward pass is over: what was drawn for it leaves the model."""
        if self.gates is not None:
            self.switch.set({})

    def _figures(self, penalty: Tensor) -> dict[str, Any]:
        """Of one pass: sums over passes come back from other processes."""
        expected = self.gates.expected_open() * len(self.gates.attentions)
        return {
            PASSES: 1,
            "open_heads": self.gates.open().sum(),
            "expected_l0": expected.detach(),
            "l0_penalty": penalty.detach(),
        }

    def _with_importance(
        self, model: nn.Module, sample: Mapping[str, Any]
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """One pass for both: it has gates of one for every token, and goes back as far as these."""
        loss = _Remembering(super().forward)
        meter = ImportanceMeter(model, loss, self.unit)
        try:
            meter.update(sample)
        except ValueError:
            if loss.found is None:
                raise
            next(iter(meter.totals.values())).fill_(math.nan)  # the task leaves out the line
        total, size, logged = loss.found
        return total.detach(), size, logged | {SUMS: sums_of(meter)}

    def load_state_dict(self, state_dict: Mapping[str, Any] | None, *args: Any, **kwargs: Any):
        """A checkpoint of training without gates has no state: all heads start open."""
        if state_dict is None:
            logger.info("the checkpoint has no gates: all of them start open")
            return None
        return super().load_state_dict(state_dict, *args, **kwargs)

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Also how many heads are open, and what is expected of the gates in training."""
        super().reduce_metrics(logging_outputs)
        passes = sum(log.get(PASSES, 0) for log in logging_outputs)
        if passes > 0:
            for name, digits in (("open_heads", 0), ("expected_l0", 2), ("l0_penalty", 4)):
                value = sum(log.get(name, 0) for log in logging_outputs) / passes
                metrics.log_scalar(name, value, weight=0, round=digits)


def _check(weight: float | None, log_a: float, speed: float) -> None:
    if weight is None and (log_a, speed) != (OPEN, SPEED):
        raise ValueError("--head-l0-init and --head-l0-speed go with --head-l0: give it, too")
    if weight is not None and not 0 <= weight < math.inf:
        raise ValueError(f"--head-l0 ({weight:g}) must be a number that is not negative")
    if not math.isfinite(log_a):
        raise ValueError(f"--head-l0-init ({log_a:g}) must be a number")
    if not 0 < speed < math.inf:
        raise ValueError(f"--head-l0-speed ({speed:g}) must be positive")


class _Remembering(nn.Module):
    """A loss, and what it has returned last."""

    def __init__(self, loss: Callable[..., tuple[Tensor, Any, dict[str, Any]]]):
        super().__init__()
        self.loss = loss
        self.found: tuple[Tensor, Any, dict[str, Any]] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any, dict[str, Any]]:
        self.found = self.loss(*args, **kwargs)
        return self.found
