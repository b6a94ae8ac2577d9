"""The demo: the same script as `make demo`, with a few updates; and its time budget."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, QUICKSTART / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def demo(cwd: Path, **settings) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(QUICKSTART / "run.sh")],
        cwd=cwd,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | settings,
        capture_output=True,
        text=True,
    )


def test_the_whole_job_and_a_restart(tmp_path):
    """From the corpus to a score on all 527 sentences; then more updates, then nothing to do."""
    work = tmp_path / "a folder"
    first = demo(tmp_path, WORK=str(work), MAX_UPDATE="2")
    assert first.returncode == 0, first.stdout + first.stderr
    result = json.loads((work / "lite_transformer_quickstart/result.json").read_text())
    assert (result["sentences"], result["updates"]) == (527, 2)
    assert f"BLEU {result['bleu']:.1f} on 527 sentences" in first.stdout
    assert "version:" in result["signature"] and "version:" in first.stdout
    assert first.stdout.count("  reference  ") == 5

    again = demo(tmp_path, WORK=str(work), MAX_UPDATE="3")
    assert "from update 2 to 3" in again.stdout
    checkpoint = work / "lite_transformer_quickstart/checkpoints/checkpoint_last.pt"
    state = torch.load(checkpoint)
    assert state["optimizer_history"][-1]["num_updates"] == 3

    idle = demo(tmp_path, WORK=str(work), MAX_UPDATE="3")
    assert "fairseq-train" not in idle.stdout and "fairseq-generate" not in idle.stdout
    assert "BLEU" in idle.stdout


@pytest.mark.parametrize(
    "setting, message",
    [
        (dict(MINUTES="abc"), "MINUTES (abc) must be a number above 0"),
        (dict(MINUTES="0"), "MINUTES (0) must be a number above 0"),
        (dict(MAX_UPDATE="-1"), "MAX_UPDATE (-1) must be a whole number above 0"),
        (dict(COMPARE="yes"), "COMPARE (yes) must be 0 or 1"),
    ],
)
def test_bad_settings(setting, message, tmp_path):
    result = demo(tmp_path, WORK=str(tmp_path / "work"), **setting)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and message in result.stderr


def train_for(seconds_per_update, budget: float):
    """Play run.sh and fairseq-train: (updates, seconds, length of the last schedule)."""
    schedule = load("schedule").Schedule(budget_seconds=budget, max_update=None)
    for _ in range(10):
        schedule.find_total_()
        phase, _, total, _, _, stop_hours = schedule.next_run(400)
        if phase == "finished":
            return schedule.done, schedule.used_seconds, schedule.total
        while schedule.done < total and schedule.used_seconds < stop_hours * 3600:
            schedule.done += 1
            schedule.used_seconds += seconds_per_update(schedule.used_seconds)
    raise AssertionError("the schedule never ends")


@pytest.mark.parametrize("speed", [0.05, 0.2, 0.6, 3.0])
def test_the_schedule_ends_with_the_budget(speed):
    done, seconds, total = train_for(lambda _: speed, 525)
    assert done == total  # the learning rate has reached zero
    assert seconds == pytest.approx(525, rel=0.02)


@pytest.mark.parametrize("before, after", [(0.5, 0.25), (0.25, 0.35)])
def test_the_schedule_follows_a_change_of_speed(before, after):
    done, seconds, total = train_for(lambda t: before if t < 200 else after, 525)
    assert done == pytest.approx(total, rel=0.1)
    assert 0.9 * 525 <= seconds <= 1.06 * 525
