"""`--task prune_heads`: translation with attention heads masked, in stock commands.

Michel et al. 2019, sections 3 (some heads, or all but one of a layer) and 4 (the least important).
In training heads may go step by step, and their importance is written down at each validation.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ..heads import Head, dynamics, format_heads, importance, list_heads, mask_heads
from ..heads.schedule import GradualPruning
from .prune_heads_flags import PruneHeadsConfig, check_flags, heads_to_mask, parts_of, schedule_of
from .sentences import batches, rank_and_world

logger = logging.getLogger(__name__)

SENTENCES = 1000  # on which importance is measured before a step of pruning


@register_task("prune_heads", dataclass=PruneHeadsConfig)
class PruneHeadsTask(TranslationTask):
    """Translation, by whatever model, with heads masked or pruned in training as its flags say.

    Every model that the task builds is masked for good: all of an ensemble, in search, in
    validation and in training. A mask is the command's, not the model's: a checkpoint of masked
    training translates unmasked unless fairseq-generate and -interactive are told to mask, and
    goes on unmasked unless fairseq-train is told again. Only fairseq-validate, which takes its
    task from the checkpoint, masks as in training when it is told nothing else.

    Heads that go in the course of training, by --prune-end or by the criterion ``head_mask``, are
    the model's: in its checkpoints they are closed (``heads/closed.py``), whatever reads these.
    """

    def __init__(self, cfg: PruneHeadsConfig, *dictionaries: Any):
        super().__init__(cfg, *dictionaries)
        self.model: nn.Module | None = None  # the last one that was built
        self.masked: list[Head] = []
        self.pruning: GradualPruning | None = None
        self.criterion: nn.Module | None = None  # if it is head_mask
        self.record: dynamics.Record | None = None
        self.update = -1  # that of the last batch

    @classmethod
    def setup_task(cls, cfg: PruneHeadsConfig, **kwargs: Any) -> "PruneHeadsTask":
        check_flags(cfg)
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = super().build_model(cfg, from_checkpoint)
        self.model, self.masked = model, heads_to_mask(self.cfg, model)
        if self.masked:
            mask_heads(model, self.masked, self.cfg.rescale_heads)
            _report(model, self.masked)
        schedule = schedule_of(self.cfg)
        if schedule and from_checkpoint:
            logger.info("--prune-end acts in training: heads are closed as the checkpoint has them")
        elif schedule:
            minimum = self.cfg.min_heads_per_layer or 0
            self.pruning = GradualPruning(model, schedule, parts_of(self.cfg), minimum)
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        criterion = super().build_criterion(cfg, from_checkpoint)
        if not hasattr(criterion, "recording"):
            return criterion
        if self.pruning and criterion.gates is not None:
            raise ValueError("--prune-end and --head-l0 both choose heads: give one of them")
        self.criterion = criterion
        folder = save_dir(self.cfg)
        if folder and criterion.unit in importance.UNITS:
            path = folder / dynamics.FILE if rank_and_world()[0] == 0 else None
            self.record = dynamics.Record(path, self.model, criterion.unit)
        return criterion

    def closed(self) -> list[Head]:
        """The heads that are masked in validation, by whatever flag."""
        gates = getattr(self.criterion, "gates", None)
        learned = gates.closed() if gates else []
        scheduled = (self.pruning.closed or []) if self.pruning else []
        return [*self.masked, *learned, *scheduled]

    # --- training -------------------------------------------------------------------------------

    def train_step(
        self,
        sample: Mapping[str, Any],
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Before the first batch of an update, heads are pruned if it is time."""
        if update_num != self.update:
            self._before_update(update_num, model, criterion)
            self.update = update_num
        found = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if self.criterion is not None:
            self.criterion.release()
        return found

    def _before_update(self, update: int, model: nn.Module, criterion: nn.Module) -> None:
        if self.record:
            self.criterion.recording = False
            if update == 0:
                self._record_start(model, criterion)
        if self.pruning:
            number = self.cfg.importance_sentences or SENTENCES

            def measure() -> Mapping[Head, float]:
                some = batches(self, "train", self.model, number, seed=update)
                return importance.measure(model, criterion, some).scores

            if self.pruning.before_update(update, measure):
                _report(self.model, self.pruning.closed, f"after {update} updates ")

    # --- validation -----------------------------------------------------------------------------

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        super().begin_valid_epoch(epoch, model)
        if self.record:
            self.criterion.recording = True
            self.record.begin(epoch, self._valid_splits())

    def reduce_metrics(
        self, logging_outputs: Sequence[Mapping[str, Any]], criterion: nn.Module
    ) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if self.record:
            self.record.add(logging_outputs)

    def post_validate(self, model: nn.Module, stats: Mapping[str, Any], agg: Any) -> None:
        """fairseq-train calls it after each split."""
        if self.record:
            self.record.end(stats["num_updates"], self.closed())

    def _valid_splits(self) -> list[str]:
        """In the order in which fairseq-train has loaded them and goes through them."""
        return [split for split in self.datasets if split != "train"]

    def _record_start(self, model: nn.Module, criterion: nn.Module) -> None:
        """The importance before training, by the same measure as in validation."""
        for split in self._valid_splits():
            whole = batches(self, split, self.model)
            found = importance.measure(model, criterion, whole, self.record.unit, normalise=False)
            self.record.write(found, 0, 0, split, self.closed())


def save_dir(cfg: PruneHeadsConfig) -> Path | None:
    """Where the command that has made this configuration saves its checkpoints."""
    if not isinstance(cfg, DictConfig):
        return None
    folder = OmegaConf.select(cfg._get_root(), "checkpoint.save_dir")
    return Path(folder) if folder else None


def _report(model: nn.Module, heads: Iterable[Head], when: str = "") -> None:
    masked, present = set(heads), list_heads(model)
    counts = f"{len(masked)} of {len(present)} heads"
    logger.info("%smasked %s: %s", when, counts, format_heads(masked))
    reading = {head for head in present if head.part == "A"}
    if reading and reading <= masked:
        logger.warning("no head of encoder-decoder attention is left: nothing reads the source")
