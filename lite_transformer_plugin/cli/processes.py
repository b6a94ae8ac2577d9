"""Several processes on one machine for one command, each with its share of work and device."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessException


def run_in_processes(number: int, work: Callable[..., None], *args: Any) -> None:
    """``work(*args)`` in so many processes that find each other through torch.distributed.

    One process needs no others. With more, each has its GPU if there are enough, else the CPU's
    threads are divided.

    Raises:
        ValueError: for fewer than one process, and what a process raises that the user can mend.
    """
    if number < 1:
        raise ValueError(f"--processes ({number}) must be at least 1")
    if number == 1:
        work(*args)
        return
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.get_context("spawn")
        errors = context.SimpleQueue()
        job = (number, f"file://{Path(folder) / 'meeting'}", errors, work, args)
        try:
            torch.multiprocessing.spawn(_one, job, nprocs=number)
        except ProcessException:
            if errors.empty():
                raise
            raise ValueError(errors.get()) from None


def _one(rank: int, number: int, meeting: str, errors: Any, work: Callable, args: tuple) -> None:
    on_gpu = torch.cuda.device_count() >= number
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // number))
    backend = "nccl" if on_gpu else "gloo"
    torch.distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=number)
    try:
        work(*args)
    except (ValueError, OSError, ImportError) as error:
        errors.put(str(error))
        raise
    finally:
        torch.distributed.destroy_process_group()


def rank() -> int:
    return torch.distributed.get_rank() if _distributed() else 0


def world_size() -> int:
    return torch.distributed.get_world_size() if _distributed() else 1


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
