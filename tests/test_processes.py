"""Several processes for one command: what goes wrong in one of them is told in one line."""

import pytest

from lite_transformer_plugin.cli import processes


def refuse(text: str) -> None:
    if processes.rank() == 1:
        raise ValueError(f"{text} in one of {processes.world_size()}")


def test_a_mistake_seen_by_one_process_is_raised_here():
    with pytest.raises(ValueError, match="^a wrong split in one of 2$"):
        processes.run_in_processes(2, refuse, "a wrong split")


def test_one_process_is_this_one():
    assert processes.run_in_processes(1, lambda: None) is None
    assert (processes.rank(), processes.world_size()) == (0, 1)


def test_no_process_is_refused():
    with pytest.raises(ValueError, match=r"--processes \(0\)"):
        processes.run_in_processes(0, print)
