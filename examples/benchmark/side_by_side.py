"""Two models side by side: turns in one process, memory in processes of their own."""

import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

PAD = 1

Row = dict[str, object]
Work = Callable[[], object]


def interleaved(works: dict[str, Work], turns: int) -> dict[str, float]:
    """Median CPU milliseconds of each piece of work, after two turns of warm-up."""
    spent = {name: [] for name in works}
    for turn in range(turns + 2):
        for name, work in works.items():
            start = time.process_time()
            work()
            if turn >= 2:
                spent[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in spent.items()}


def row(what: str, ours: float, stock: float, unit: str = "ms") -> Row:
    return {
        "what": what,
        "ours": round(ours, 3),
        "stock": round(stock, 3),
        "unit": unit,
        "ratio": round(stock / ours, 3),
    }


def step(model: torch.nn.Module, words: int, batch: int, length: int, out: int = 0) -> Work:
    """One training step without the optimizer; up to four positions of a sentence are padding.

    The target is as long as the source, or has ``out`` positions.
    """
    source, target = (torch.randint(4, words, (batch, n)) for n in (length, out or length))
    for i in range(batch):  # lengths as a bucketed batch has them
        source[i, length - i % 5 :] = PAD
    lengths = source.ne(PAD).sum(1)

    def work() -> None:
        model.zero_grad(set_to_none=True)
        output, _ = model.train()(source, lengths, target)
        torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()).backward()

    return work


def peak_memory(make: Callable[..., Work], *words) -> float:
    """Megabytes that three turns of ``make(*words)`` add to a process that does nothing else.

    A process that has trained before keeps freed memory, and would hide what is needed.

    Raises:
        BrokenProcessPool: if that process died (a multiprocessing.Pool would wait for ever).
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(_peak, make, *words).result()


def _peak(make: Callable[..., Work], *words) -> float:
    torch.set_num_threads(1)
    work = make(*words)
    before = _most_resident()
    for _ in range(3):
        work()
    return (_most_resident() - before) / 1024


def _most_resident() -> int:
    """Kilobytes that this process has held at most; getrusage would count its parent's, too."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1])
