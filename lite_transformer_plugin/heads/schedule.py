"""Pruning while training: which share of the heads is gone after which update, and which heads."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from .closed import Switch, closed_heads, save_closed
from .names import Head, list_heads, sort_heads
from .ordering import by_score, first_heads, number_of

# --- how many -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """Equal steps at equal distances.

    Raises:
        ValueError: for steps that do not fit between start and end.
    """

    start: int  # the update before which the first heads go
    end: int  # the update before which the last heads go
    steps: int
    share: float  # of the heads that is gone in the end, 0 to 1

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"pruning cannot start before update {self.start}")
        if self.end < self.start:
            raise ValueError(
                f"pruning would end at update {self.end}, before its start, {self.start}"
            )
        if self.steps < 1:
            raise ValueError(f"pruning needs at least one step, not {self.steps}")
        if self.steps > self.end - self.start + 1:
            raise ValueError(
                f"{self.steps} steps of pruning do not fit between the updates {self.start} and "
                f"{self.end}"
            )

    def updates(self) -> list[int]:
        """The update before which each step is taken; a single step is taken at the end."""
        if self.steps == 1:
            return [self.end]
        distance = (self.end - self.start) / (self.steps - 1)
        return [round(self.start + step * distance) for step in range(self.steps)]

    def share_at(self, update: int) -> float:
        """The share of the heads that is gone in this update."""
        return self.share * sum(first <= update for first in self.updates()) / self.steps


# --- which ----------------------------------------------------------------------------------------


class GradualPruning:
    """Closes heads of a model step by step, those that matter least by then.

    What has been closed stays closed and is written so into checkpoints (see ``closed``), from
    which a training that goes on reads it: there is no other state.

    Args:
        parts: whose heads may go; the share is one of these.
        minimum: heads to leave in each attention module.

    Raises:
        ValueError: if so many cannot go.
    """

    def __init__(
        self, model: nn.Module, schedule: Schedule, parts: Iterable[str], minimum: int = 0
    ):
        self.model, self.schedule = model, schedule
        self.parts, self.minimum = set(parts), minimum
        self.total = len(list_heads(model, self.parts))
        first_heads(list_heads(model, self.parts), number_of(schedule.share, self.total), minimum)
        self.switch = Switch(model)
        self.closed: list[Head] | None = None  # until the model has its weights
        save_closed(model, lambda: self.closed or ())

    def before_update(self, update: int, measure: Callable[[], Mapping[Head, float]]) -> bool:
        """Take a step if one is due; returns whether other heads are masked now than before.

        Args:
            measure: how much the heads matter in the model as it is; asked only when needed.
        """
        before = self.closed
        if before is None:
            before = []
            self._close(closed_heads(self.model))
        already = [head for head in self.closed if head.part in self.parts]
        count = number_of(self.schedule.share_at(update), self.total)
        if count > len(already):
            order = by_score(measure(), self.parts)
            self._close({*self.closed, *first_heads(order, count, self.minimum, already)})
        return self.closed != before

    def _close(self, heads: Iterable[Head]) -> None:
        self.closed = sort_heads(heads)
        self.switch.mask(self.closed)
