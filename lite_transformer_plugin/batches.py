"""The samples of a split, all or some, in the batches that fairseq-generate would make."""

import numpy as np
from fairseq import utils
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

DEFAULT_MAX_TOKENS = 12000  # of a batch, where no flag limits it, as in fairseq-generate


def choose(count: int, size: int, seed: int) -> np.ndarray:
    """``size`` of the numbers below ``count``, ascending; all if there are fewer.

    Raises:
        ValueError: if that is none.
    """
    if size < 1:
        raise ValueError(f"a subset of {size} sentences is empty: give at least 1")
    # RandomState: its stream never changes, from one numpy to the next
    return np.sort(np.random.RandomState(seed).permutation(count)[:size])


def subset(dataset: FairseqDataset, size: int | None, seed: int) -> FairseqDataset:
    """So many samples of a data set, or all of it; raises as ``choose`` does."""
    return dataset if size is None else _Subset(dataset, choose(len(dataset), size, seed))


class _Subset(BaseWrapperDataset):
    """Some sentences of a data set, under the numbers they have there."""

    def __init__(self, dataset: FairseqDataset, numbers: np.ndarray):
        super().__init__(dataset)
        self.numbers = numbers

    def ordered_indices(self) -> np.ndarray:
        indices = self.dataset.ordered_indices()
        return indices[np.isin(indices, self.numbers)]


def batch_iterator(
    task: FairseqTask,
    model: nn.Module,
    cfg: DictConfig,
    dataset: FairseqDataset,
    default_max_tokens: int = DEFAULT_MAX_TOKENS,
    **words,
) -> EpochBatchIterator:
    """fairseq's iterator over a data set within the limits of a command line.

    ``default_max_tokens``, padding included, limits a batch where no flag does; ``words`` are
    further ones of ``FairseqTask.get_batch_iterator``.

    Raises:
        ValueError: for a sample longer than the positions of the model, unless
            ``--skip-invalid-size-inputs-valid-test`` leaves it out.
    """
    limits = cfg.dataset
    unlimited = limits.max_tokens is None and limits.batch_size is None
    try:
        return task.get_batch_iterator(
            dataset=dataset,
            max_tokens=default_max_tokens if unlimited else limits.max_tokens,
            max_sentences=limits.batch_size,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            ignore_invalid_inputs=limits.skip_invalid_size_inputs_valid_test,
            seed=cfg.common.seed,
            disable_iterator_cache=True,  # others may cut the same split otherwise
            **words,
        )
    except Exception as error:  # fairseq raises nothing narrower, and its message says all
        if not str(error).startswith("Size of sample"):
            raise
        raise ValueError(str(error)) from error


def make_batches(
    task: FairseqTask, model: nn.Module, cfg: DictConfig, dataset: FairseqDataset
) -> list[dict]:
    """The batches that fairseq-generate makes of a data set, on the model's device."""
    multiple = cfg.dataset.required_batch_size_multiple
    batches = batch_iterator(task, model, cfg, dataset, required_batch_size_multiple=multiple)
    device = next(model.parameters()).device
    found = (
        utils.apply_to_sample(lambda x: x.to(device), batch)
        for batch in batches.next_epoch_itr(shuffle=False)
    )
    return [batch for batch in found if "net_input" in batch]
