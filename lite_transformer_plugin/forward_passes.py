"""A model on a split without a search: what one forward pass says of every sample.

``LanguageModelPass`` leaves (loss in nats, tokens) of every block of text, ``ClassifierPass`` (true
class, predicted class) of every sentence or pair; the metrics of ``metrics.py`` are made of these.
Both have the ``model``, and the ``run``, of ``evaluation.Translator``.
"""

from typing import Any

import torch
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from .batches import make_batches, subset
from .evaluation import share

Row = tuple[int, tuple[float, float]]  # number of the sample, and its figures


class ForwardPass:
    """A split in batches; ``run`` gives what is known of each sample, in the data set's order."""

    def __init__(
        self,
        task: FairseqTask,
        model: nn.Module,
        cfg: DictConfig,
        split: str,
        subset_size: int | None = None,
        seed: int = 1,
    ):
        """Arguments and errors as for ``evaluation.Translator``."""
        if split not in task.datasets:
            task.load_dataset(split)
        self.task, self.model = task, model
        self.batches = make_batches(
            task, model, cfg, subset(task.dataset(split), subset_size, seed)
        )

    def run(self, keep_encoder: bool = False, shared: bool = False) -> list[tuple[float, float]]:
        """
        Args:
            keep_encoder: has no meaning here.
            shared: every process does some of the batches, and has all in the end.
        """
        with torch.inference_mode():
            if shared:
                found = share(self.batches, self._rows)
            else:
                found = map(self._rows, self.batches)
            return [figures for _, figures in sorted(row for rows in found for row in rows)]

    def _rows(self, sample: dict[str, Any]) -> list[Row]:
        pairs = zip(*(column.tolist() for column in self._columns(sample)), strict=True)
        return list(zip(sample["id"].tolist(), pairs, strict=True))

    def _columns(self, sample: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class LanguageModelPass(ForwardPass):
    """Blocks of text, cut as the task cuts them for training and fairseq-validate."""

    def _columns(self, sample: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(**sample["net_input"])
        scores = self.model.get_normalized_probs(output, log_probs=True, sample=sample)
        target = sample["target"]
        real = target.ne(self.task.target_dictionary.pad())
        found = scores.float().gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return -found.masked_fill(~real, 0).sum(1, dtype=torch.double), real.sum(1)


class ClassifierPass(ForwardPass):
    """Sentences or pairs, through the model's classification head."""

    def __init__(self, *args, head: str, **options):
        """
        Args:
            head: name of the classification head.

        Raises:
            ValueError: for a split with a label that the training had not, and regression.
        """
        super().__init__(*args, **options)
        self.head = head
        if getattr(self.task.cfg, "regression_target", False):
            raise ValueError("--regression-target: numbers are predicted, there are no classes")
        classes = len(self.labels)
        for sample in self.batches:
            target = sample["target"]
            if target.min() < 0 or target.max() >= classes:
                raise ValueError(
                    f"a label was unseen in training, which knew {', '.join(self.labels)}: "
                    "binarise the labels with the training's --srcdict label/dict.txt"
                )

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of their numbers."""
        names = self.task.label_dictionary
        return names.symbols[names.nspecial :][: self.task.cfg.num_classes]

    def _columns(self, sample: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, _ = self.model(
            **sample["net_input"], features_only=True, classification_head_name=self.head
        )
        return sample["target"].view(-1), logits.argmax(-1)
