"""Importance in half precision and on several processes is that of one in double precision."""

import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed.utils import get_global_group
from importance_batches import SMOOTHED, TASK, assert_same, batches_of, importance_of, model_of

from lite_transformer_plugin.heads.importance import UNITS, measure, read_rows, rows

# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "transformer_lm", "roberta"])
@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16, torch.half])
def test_half_precision(kind, dtype):
    tolerance = {torch.float: 1e-5, torch.half: 2e-2, torch.bfloat16: 0.15}[dtype]
    for unit in UNITS:
        expected = importance_of(model_of(kind), kind, unit=unit, normalise=True)
        model = model_of(kind, dtype=dtype)
        assert_same(
            importance_of(model, kind, unit=unit, normalise=True), expected, tolerance, tolerance
        )


class Scaled(LabelSmoothedCrossEntropyCriterion):
    factor = 1.0

    def forward(self, model, sample, reduce=True):
        loss, *rest = super().forward(model, sample, reduce)
        return loss * self.factor, *rest


@pytest.mark.parametrize("factor", [1e-5, 1.0, 1e4])
def test_float16_gradients_neither_vanish_nor_overflow(factor):
    expected = importance_of(model_of("transformer"), "transformer")
    criterion = Scaled(TASK, sentence_avg=False, label_smoothing=0.1)
    criterion.factor = factor
    model = model_of("transformer", dtype=torch.half)
    found = measure(model, criterion, batches_of("transformer", 3), normalise=False).scores
    assert_same({head: score / factor for head, score in found.items()}, expected, 0.05)


@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_a_broken_checkpoint(dtype):
    model = model_of("transformer", dtype=dtype)
    model.decoder.layers[0].fc1.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        importance_of(model, "transformer")


# --- several processes ----------------------------------------------------------------------------

SHARES = {"even": (slice(0, None, 2), slice(1, None, 2)), "uneven": (slice(0, None), slice(0, 0))}


def figures_of(rank: int, address: str) -> dict:
    how = dict(rank=rank, world_size=2, timeout=timedelta(seconds=100))
    torch.distributed.init_process_group("gloo", address, **how)
    results, model = {}, model_of("lite_transformer")
    for unit in UNITS:
        for name, shares in SHARES.items():
            samples = batches_of("lite_transformer", 2)[shares[rank]]
            results[unit, name] = measure(model, SMOOTHED, samples, unit, normalise=False)
    return results


def other_process(_, address: str, file: Path) -> None:
    torch.set_num_threads(1)
    results = figures_of(1, address)
    torch.save({key: (rows(result), result.count) for key, result in results.items()}, file)


def test_two_processes_get_the_figures_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    file = tmp_path / "other.pt"
    other = torch.multiprocessing.spawn(other_process, (address, file), nprocs=1, join=False)
    try:
        results = figures_of(0, address)
        other.join()
    finally:
        torch.distributed.destroy_process_group()
        vars(get_global_group).pop("_global_group", None)
    theirs, model = torch.load(file), model_of("lite_transformer")
    for (unit, name), ours in results.items():
        alone = measure(model, SMOOTHED, batches_of("lite_transformer", 2), unit, normalise=False)
        assert ours.count == alone.count == theirs[unit, name][1]
        assert_same(ours.scores, alone.scores)
        assert_same(read_rows(theirs[unit, name][0], model), alone.scores)
