"""`--task prune_heads`: translation with attention heads masked, in stock commands.

Michel et al. 2019, sections 3 (some heads, or all but one of a layer) and 4 (the least important).
"""
# ruff: noqa: UP045  (fairseq reads typing's Optional only)

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import nn

from ..heads import Head, check_heads, format_heads, list_heads, mask_heads, parse_heads
from ..heads.importance import read_rows
from ..heads.names import PARTS, check_parts
from ..heads.ordering import by_score, to_remove

logger = logging.getLogger(__name__)

# --- flags ----------------------------------------------------------------------------------------


def _flag(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass
class PruneHeadsConfig(TranslationConfig):
    """Which heads are masked; none unless a flag says so."""

    mask_heads: Optional[str] = _flag(
        None,
        "heads to mask, PART:LAYER:HEAD counted from 1, part E (encoder self-attention), A "
        "(encoder-decoder attention) or D (decoder self-attention): 'E:1:3 A:6:1,2 D:2:1-4'",
    )
    keep_heads: Optional[str] = _flag(
        None,
        "in each layer of each part named here, mask all heads but these: 'E:1:3' leaves one",
    )
    rescale_heads: bool = _flag(
        False, "multiply the heads left in a layer by n / n_left, n its number of heads"
    )
    prune_ratio: Optional[float] = _flag(
        None,
        "mask this share of the heads, 0 to 1, the least important first; needs --head-importance",
    )
    head_importance: Optional[str] = _flag(
        None, "JSON file of the importance of every head, as fairseq-prune-heads writes it"
    )
    min_heads_per_layer: Optional[int] = _flag(
        None, "with --prune-ratio, leave at least N heads in each layer of each part (default: 0)"
    )
    head_parts: Optional[str] = _flag(
        None,
        "with --prune-ratio, mask heads of these parts only, and take the share of them: E,A "
        "(default: E,A,D)",
    )


def check_flags(cfg: PruneHeadsConfig) -> None:
    """See that the flags agree, before any data or model is read.

    Raises:
        ValueError: naming the flag that is wrong.
    """
    if cfg.prune_ratio is None:
        _check_names(cfg)
    else:
        _check_ratio(cfg)
    nothing = (cfg.mask_heads, cfg.keep_heads, cfg.prune_ratio) == (None, None, None)
    if cfg.rescale_heads and nothing:
        raise ValueError("--rescale-heads needs --mask-heads, --keep-heads or --prune-ratio")


def _check_names(cfg: PruneHeadsConfig) -> None:
    for name in ("head_importance", "min_heads_per_layer", "head_parts"):
        if getattr(cfg, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with --prune-ratio: give it, too")
    both = set(_named(cfg, "mask_heads")) & set(_named(cfg, "keep_heads"))
    if both:
        raise ValueError(f"{format_heads(both)} is in both --mask-heads and --keep-heads")


def _check_ratio(cfg: PruneHeadsConfig) -> None:
    if (cfg.mask_heads, cfg.keep_heads) != (None, None):
        raise ValueError("give either --prune-ratio or --mask-heads and --keep-heads, not both")
    if not 0 <= cfg.prune_ratio <= 1:
        raise ValueError(f"--prune-ratio ({cfg.prune_ratio}) must be between 0 and 1")
    if cfg.head_importance is None:
        raise ValueError("--prune-ratio needs --head-importance FILE, from fairseq-prune-heads")
    if (cfg.min_heads_per_layer or 0) < 0:
        raise ValueError(f"--min-heads-per-layer ({cfg.min_heads_per_layer}) must not be negative")
    _parts(cfg)
    read_importance(cfg.head_importance)


def _named(cfg: PruneHeadsConfig, name: str) -> list[Head]:
    text = getattr(cfg, name)
    if text is None:
        return []
    flag = f"--{name.replace('_', '-')}"
    try:
        heads = parse_heads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error
    if not heads:
        raise ValueError(f"{flag} is empty: a mask must name at least one head, as E:1:3")
    return heads


def _parts(cfg: PruneHeadsConfig) -> set[str]:
    if cfg.head_parts is None:
        return set(PARTS)
    try:
        return check_parts(part.strip() for part in cfg.head_parts.split(","))
    except ValueError as error:
        raise ValueError(f"--head-parts: {error}, as in E,A") from error


# --- heads ----------------------------------------------------------------------------------------


def read_importance(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an importance file: all of it, or what stands under "importance".

    Raises:
        ValueError: if it is not there, or no such file.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--head-importance {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--head-importance {path} is not JSON: {error}") from error
    found = data.get("importance") if isinstance(data, dict) else data
    if not isinstance(found, list):
        raise ValueError(f"--head-importance {path} holds no list of importance")
    return found


def heads_to_mask(cfg: PruneHeadsConfig, model: nn.Module) -> list[Head]:
    """The heads of this model that the flags mask.

    Raises:
        ValueError: for a head that the model has not, and an importance file of another model.
    """
    if cfg.prune_ratio is not None:
        return _least_important(cfg, model)
    masked, kept = _named(cfg, "mask_heads"), _named(cfg, "keep_heads")
    check_heads(model, kept)
    places = {head.place for head in kept}
    others = [head for head in list_heads(model) if head.place in places and head not in kept]
    return masked + others


def _least_important(cfg: PruneHeadsConfig, model: nn.Module) -> list[Head]:
    rows = read_importance(cfg.head_importance)
    try:
        scores = read_rows(rows, model)
    except ValueError as error:
        raise ValueError(f"--head-importance {cfg.head_importance}: {error}") from error
    order = by_score(scores, _parts(cfg))
    return to_remove(order, cfg.prune_ratio, cfg.min_heads_per_layer or 0)


# --- task -----------------------------------------------------------------------------------------


@register_task("prune_heads", dataclass=PruneHeadsConfig)
class PruneHeadsTask(TranslationTask):
    """Translation, by whatever model, with the heads masked that its flags name.

    Every model that the task builds is masked for good: all of an ensemble, in search, in
    validation and in training. A mask is the command's, not the model's: a checkpoint of masked
    training translates unmasked unless fairseq-generate and -interactive are told to mask, and
    goes on unmasked unless fairseq-train is told again. Only fairseq-validate, which takes its
    task from the checkpoint, masks as in training when it is told nothing else.
    """

    @classmethod
    def setup_task(cls, cfg: PruneHeadsConfig, **kwargs: Any) -> "PruneHeadsTask":
        check_flags(cfg)
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = super().build_model(cfg, from_checkpoint)
        heads = heads_to_mask(self.cfg, model)
        if heads:
            mask_heads(model, heads, self.cfg.rescale_heads)
            _report(model, heads)
        return model


def _report(model: nn.Module, heads: Iterable[Head]) -> None:
    masked, present = set(heads), list_heads(model)
    logger.info("masked %d of %d heads: %s", len(masked), len(present), format_heads(masked))
    reading = {head for head in present if head.part == "A"}
    if reading and reading <= masked:
        logger.warning("no head of encoder-decoder attention is left: nothing reads the source")
