"""Fit the learning-rate schedule to a time budget on a machine of unknown speed.

The learning rate rises, then falls on a straight line to zero. It should reach zero just when the
time is over, but fairseq counts updates, not seconds. So training goes in three runs:

1. MEASURED_UPDATES updates. They lie inside the warm-up, so they are the same for every length of
   schedule. Their checkpoint tells how long they took, hence how many updates the budget holds.
2. On from that checkpoint, with this length filled in, for half of the budget.
3. The length is corrected by the speed of run 2 (other work may have come or gone), and training
   goes on to the end.

The length is kept in schedule.json: a stopped run goes on with the same one. A changed budget gives
a new length from where training is. Updates and seconds are those of the checkpoint: what came
after it is lost when a run is stopped, and counts neither as work nor as time.

Prints one line for run.sh:
    PHASE DONE TOTAL WARMUP SAVE_EVERY STOP_HOURS
PHASE is "measure", "train" or "finished"; TOTAL the length of the schedule, WARMUP its warm-up and
SAVE_EVERY the distance of checkpoints, all in updates; STOP_HOURS fairseq's --stop-time-hours.
"""

import argparse
import json
import logging
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

MEASURED_UPDATES = 100
MEASURED_SHARE = 0.15  # of the budget, at most: on a slow machine fewer updates must do
CORRECTED_SHARE = 0.5  # of the budget: when the length is corrected
FINISHED_SHARE = 0.9  # of the budget: less than the rest is not worth another run
LIMIT_SHARE = 1.05  # of the budget: training slower than expected stops here
SECONDS_BETWEEN_SAVES = 45  # what a stopped run loses at most

logger = logging.getLogger("schedule.py")


@dataclass
class Schedule:
    """What schedule.json holds."""

    budget_seconds: float
    """Training time to use, over all runs."""
    max_update: int | None
    """Length asked for in updates: then nothing is measured and the budget does not matter."""
    total: int | None = None
    """Length in updates; None while it is unknown."""
    planned_updates: int = 0
    planned_seconds: float = 0.0
    """Where training was when `total` was found."""
    done: int = 0
    used_seconds: float = 0.0
    """Where training is."""

    def passed(self, share: float) -> bool:
        """Whether this share of the budget is used."""
        return self.used_seconds >= share * self.budget_seconds

    def corrected(self) -> bool:
        """Whether `total` was found after the time for its correction."""
        return self.planned_seconds >= CORRECTED_SHARE * self.budget_seconds

    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        if self.total is None:
            return False
        if self.max_update is not None:
            return self.done >= self.total
        if self.passed(LIMIT_SHARE):
            return True
        return self.done >= self.total and self.passed(FINISHED_SHARE)

    def find_total_(self) -> None:
        """Set or correct `total` when the time for it has come."""
        if self.max_update is not None:
            self.total = self.max_update
            return
        if self.total is None:
            due = self.done >= MEASURED_UPDATES or self.passed(MEASURED_SHARE)
        else:
            early = self.done >= self.total
            due = early or (not self.corrected() and self.passed(CORRECTED_SHARE))
        if not due or self.finished():
            return
        updates = self.done - self.planned_updates
        rate = updates / (self.used_seconds - self.planned_seconds)
        left = max(0.0, self.budget_seconds - self.used_seconds)
        self.total = self.done + round(rate * left)
        self.planned_updates, self.planned_seconds = self.done, self.used_seconds

    def next_run(self, warmup: int) -> tuple[str, int, int, int, int, float]:
        """The six values of the line for run.sh."""
        hour = 3600
        if self.total is None:
            # One checkpoint, at the end: the measurement shall hold nothing but updates.
            stop = MEASURED_SHARE * self.budget_seconds / hour
            return "measure", self.done, MEASURED_UPDATES, warmup, MEASURED_UPDATES, stop
        share = LIMIT_SHARE if self.corrected() else CORRECTED_SHARE
        stop = 0.0 if self.max_update is not None else share * self.budget_seconds / hour
        rate = self.done / self.used_seconds if self.done else self.total / SECONDS_BETWEEN_SAVES
        save_every = max(1, round(rate * SECONDS_BETWEEN_SAVES))
        warmup = min(warmup, max(1, self.total // 4))
        phase = "finished" if self.finished() else "train"
        return phase, self.done, self.total, warmup, save_every, stop


def progress(path: Path) -> tuple[int, float]:
    """Updates done and seconds of training used by a checkpoint."""
    # Beside tensors and plain values a checkpoint of fairseq holds its arguments as a Namespace;
    # the loader stays a safe one. Tensors stay on disk.
    with torch.serialization.safe_globals([argparse.Namespace]):
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    updates = state["optimizer_history"][-1]["num_updates"]
    return updates, state["extra_state"]["previous_training_time"]


def newest_progress(folder: Path) -> tuple[int, float]:
    """Progress of checkpoint_last.pt; of the newest whole checkpoint if that one is broken.

    fairseq writes one checkpoint whole and copies it to its other names. A run that is stopped
    during the copy leaves half a checkpoint_last.pt, and could not go on without this.
    """
    last = folder / "checkpoint_last.pt"
    if not last.exists():
        return 0, 0.0
    others = set(folder.glob("checkpoint_*.pt")) - {last}
    by_age = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in [last, *by_age]:
        try:
            found = progress(path)
        except (RuntimeError, ValueError, EOFError, OSError, pickle.UnpicklingError) as error:
            logger.warning("%s cannot be read: %.100s", path.name, str(error).split("\n")[0])
            continue
        if path != last:
            logger.warning("going on from %s", path.name)
            unfinished = last.with_name("checkpoint_last.copy")
            shutil.copy(path, unfinished)
            unfinished.replace(last)
        return found
    raise SystemExit(f"schedule.py: no checkpoint can be read; remove {folder} to start anew")


def load(path: Path, budget: float, max_update: int | None) -> Schedule:
    """The schedule as decided before, or a new one if something else is asked for now."""
    schedule = Schedule(**json.loads(path.read_text())) if path.exists() else None
    if schedule and (schedule.budget_seconds, schedule.max_update) == (budget, max_update):
        return schedule
    return Schedule(budget_seconds=budget, max_update=max_update)


def main() -> None:
    logging.basicConfig(format="%(name)s: %(message)s")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoints", type=Path, help="folder of the checkpoints")
    parser.add_argument("schedule", type=Path, help="schedule.json, read and written")
    parser.add_argument("--budget", type=float, required=True, help="training time in seconds")
    parser.add_argument("--warmup", type=int, required=True, help="longest warm-up in updates")
    parser.add_argument("--max-update", type=int, help="length in updates; nothing is measured")
    args = parser.parse_args()
    if args.warmup < MEASURED_UPDATES:
        parser.error(f"--warmup ({args.warmup}) must be at least {MEASURED_UPDATES}")
    schedule = load(args.schedule, args.budget, args.max_update)
    schedule.done, schedule.used_seconds = newest_progress(args.checkpoints)
    schedule.find_total_()
    unfinished = args.schedule.with_suffix(".tmp")
    unfinished.write_text(json.dumps(asdict(schedule), indent=1) + "\n")
    unfinished.replace(args.schedule)
    print(*schedule.next_run(args.warmup))


if __name__ == "__main__":
    main()
