"""Sentences of a loaded split in batches, beside the iterators of the training."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data.data_utils import numpy_seed
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask
from torch import nn

TOKENS = 1024  # of a batch, or as many as its longest sentence has: no more than in training


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes this is that share the data."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    rank, world = (
        distributed_utils.get_data_parallel_rank,
        distributed_utils.get_data_parallel_world_size,
    )
    return rank(), world()


def batches(
    task: FairseqTask, split: str, model: nn.Module, number: int | None = None, seed: int = 0
) -> Iterator[Mapping[str, Any]]:
    """This process's share of a split, or of some of its sentences, drawn by chance.

    fairseq's own batches would not do: they may be the very iterator that the training is at.

    Args:
        number: of sentences, for all processes together. Sentences too long for the model do not
            count.
        seed: of the draw; the state of no generator is changed.
    """
    dataset = task.dataset(split)
    with numpy_seed(seed):
        indices = dataset.ordered_indices()
        limits = utils.resolve_max_positions(task.max_positions(), model.max_positions())
        indices = task.filter_indices_by_size(indices, dataset, limits, ignore_invalid_inputs=True)
        if number is not None and number < len(indices):
            drawn = np.random.choice(len(indices), number, replace=False)
            indices = indices[np.sort(drawn)]
    longest = max((dataset.num_tokens(index) for index in indices), default=0)
    rank, world = rank_and_world()
    for batch in dataset.batch_by_size(indices, max_tokens=max(TOKENS, longest))[rank::world]:
        yield dataset.collater([dataset[index] for index in batch])
