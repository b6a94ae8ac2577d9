"""Importance in the course of a training run (Michel et al. 2019, section 6): a file of its lines.

In validation the criterion adds up, batch by batch, what the importance is the mean of. The sums
travel with what else it logs, so that fairseq adds up those of several processes.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import report
from .importance import Importance, ImportanceMeter
from .names import Head, attentions, format_heads

logger = logging.getLogger(__name__)

SUMS = "head_importance"  # what they are called among a criterion's logging outputs
FILE = "head_importance.jsonl"

# --- sums -----------------------------------------------------------------------------------------


def sums_of(meter: ImportanceMeter) -> Tensor:
    """All sums of a meter in a row: of a module's heads, and behind them its number of units."""
    return torch.cat(list(meter.totals.values()))


def importance_of(model: nn.Module, sums: Tensor, unit: str) -> Importance:
    """The importance, not normalised, from the sums of all batches."""
    return Importance.of_sums((a for a in attentions(model) if a.heads), sums, unit)


class Record:
    """Adds up the sums of a validation, and writes the line of the split.

    Args:
        path: of the file; None where nothing is to be written, as on all processes but one.
        unit: what the importance is the mean over.
    """

    def __init__(self, path: Path | None, model: nn.Module, unit: str):
        self.path, self.model, self.unit = path, model, unit
        self.begin(0, ())

    def begin(self, epoch: int, splits: Iterable[str]) -> None:
        """A validation of these splits begins."""
        self.epoch, self.splits = epoch, iter(splits)
        self.sums: list[Tensor] = []

    def add(self, logging_outputs: Iterable[Mapping[str, Any]]) -> None:
        """What the criterion has logged, added up over processes or not."""
        self.sums += [log[SUMS] for log in logging_outputs if SUMS in log]

    def end(self, updates: int, masked: Iterable[Head]) -> None:
        """The validation of the next split has ended."""
        split, sums, self.sums = next(self.splits, "valid"), self.sums, []
        if not sums:
            return
        total = torch.stack(sums).sum(0)
        if total.isfinite().all():
            found = importance_of(self.model, total, self.unit)
            self.write(found, self.epoch, updates, split, masked)
        else:
            logger.warning("importance on %s is not finite: %s has no line of it", split, FILE)

    def write(
        self, found: Importance, epoch: int, updates: int, split: str, masked: Iterable[Head]
    ) -> None:
        """One line: where in the training, what is measured how, and the figures."""
        where = {"epoch": epoch, "updates": updates, "split": split}
        how = {"unit": found.unit, "normalised": found.normalised}
        scores = {str(head): score for head, score in found.scores.items()}
        if self.path is not None:
            line = {**where, **how, "masked": format_heads(masked), "importance": scores}
            write_line(self.path, line)


# --- the file -------------------------------------------------------------------------------------


def write_line(path: Path, new: Mapping[str, Any]) -> None:
    """Add a line. Those of later updates go: the training has gone back to a checkpoint."""
    kept = [old for old in read_lines(path) if _comes_before(old, new)] if path.exists() else []
    text = "".join(f"{json.dumps(line)}\n" for line in [*kept, new])
    path.parent.mkdir(parents=True, exist_ok=True)
    report.write_atomically(path, lambda file: file.write_text(text), force=True)


def _comes_before(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if old["updates"] == new["updates"]:
        return old["split"] != new["split"]
    return old["updates"] < new["updates"]


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """What ``Record`` has written, in the order of the training.

    Raises:
        OSError: if the file must not be read.
        ValueError: naming a line that is none of these.
    """
    found = []
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            line["updates"], line["split"], line["importance"]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}, line {number}, is no importance of heads") from error
        found.append(line)
    return found
