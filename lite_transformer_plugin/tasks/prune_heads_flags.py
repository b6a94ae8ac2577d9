"""The flags of `--task prune_heads`, and the heads that they name."""
# ruff: noqa: UP045  (fairseq reads typing's Optional only)

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.tasks.translation import TranslationConfig
from torch import nn

from ..heads import Head, check_heads, format_heads, list_heads, parse_heads
from ..heads.importance import read_rows
from ..heads.names import PARTS, check_parts
from ..heads.ordering import by_score, to_remove
from ..heads.schedule import Schedule

OF_A_RATIO = ("head_importance", "min_heads_per_layer", "head_parts")
OF_A_SCHEDULE = ("prune_start", "prune_end", "prune_steps", "importance_sentences")

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
        "mask this share of the heads, 0 to 1, the least important first: at once, by "
        "--head-importance, or in the course of training, by --prune-end",
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
    prune_start: Optional[int] = _flag(
        None, "with --prune-end, the update before which the first heads are masked (default: 0)"
    )
    prune_end: Optional[int] = _flag(
        None,
        "reach --prune-ratio before this update of training, step by step; importance is measured "
        "before each step, and checkpoints have the heads closed in their weights",
    )
    prune_steps: Optional[int] = _flag(None, "with --prune-end, the number of steps (default: 10)")
    importance_sentences: Optional[int] = _flag(
        None,
        "with --prune-end, how many sentences of the training data importance is measured on "
        "(default: 1000)",
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
    for name in OF_A_RATIO + OF_A_SCHEDULE:
        if getattr(cfg, name) is not None:
            raise ValueError(f"{_spelt(name)} goes with --prune-ratio: give it, too")
    both = set(_named(cfg, "mask_heads")) & set(_named(cfg, "keep_heads"))
    if both:
        raise ValueError(f"{format_heads(both)} is in both --mask-heads and --keep-heads")


def _check_ratio(cfg: PruneHeadsConfig) -> None:
    if (cfg.mask_heads, cfg.keep_heads) != (None, None):
        raise ValueError("give either --prune-ratio or --mask-heads and --keep-heads, not both")
    if not 0 <= cfg.prune_ratio <= 1:
        raise ValueError(f"--prune-ratio ({cfg.prune_ratio}) must be between 0 and 1")
    if (cfg.min_heads_per_layer or 0) < 0:
        raise ValueError(f"--min-heads-per-layer ({cfg.min_heads_per_layer}) must not be negative")
    parts_of(cfg)
    if any(getattr(cfg, name) is not None for name in OF_A_SCHEDULE):
        _check_schedule(cfg)
    elif cfg.head_importance is None:
        raise ValueError(
            "--prune-ratio needs --head-importance FILE, from fairseq-prune-heads, or --prune-end N"
        )
    else:
        read_importance(cfg.head_importance)


def _check_schedule(cfg: PruneHeadsConfig) -> None:
    if cfg.prune_end is None:
        given = next(name for name in OF_A_SCHEDULE if getattr(cfg, name) is not None)
        raise ValueError(f"{_spelt(given)} goes with --prune-end: give it, too")
    if cfg.head_importance is not None:
        raise ValueError(
            "--head-importance masks heads at once, --prune-end measures importance on the way: "
            "give one of them"
        )
    if cfg.rescale_heads:
        raise ValueError("--rescale-heads does not go with --prune-end: what is left learns")
    if cfg.importance_sentences is not None and cfg.importance_sentences < 1:
        raise ValueError(f"--importance-sentences ({cfg.importance_sentences}) must be at least 1")
    schedule_of(cfg)


def schedule_of(cfg: PruneHeadsConfig) -> Schedule | None:
    """When heads are pruned in training; None if they are not.

    Raises:
        ValueError: for steps that do not fit between start and end.
    """
    if cfg.prune_end is None:
        return None
    steps = 10 if cfg.prune_steps is None else cfg.prune_steps
    try:
        return Schedule(cfg.prune_start or 0, cfg.prune_end, steps, cfg.prune_ratio)
    except ValueError as error:
        raise ValueError(f"--prune-start, --prune-end, --prune-steps: {error}") from error


def _spelt(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _named(cfg: PruneHeadsConfig, name: str) -> list[Head]:
    text = getattr(cfg, name)
    if text is None:
        return []
    flag = _spelt(name)
    try:
        heads = parse_heads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error
    if not heads:
        raise ValueError(f"{flag} is empty: a mask must name at least one head, as E:1:3")
    return heads


def parts_of(cfg: PruneHeadsConfig) -> set[str]:
    """The letters of --head-parts.

    Raises:
        ValueError: naming one that is no part.
    """
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
    """The heads of this model that the flags mask at once.

    Raises:
        ValueError: for a head that the model has not, and an importance file of another model.
    """
    if cfg.prune_end is not None:
        return []
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
    order = by_score(scores, parts_of(cfg))
    return to_remove(order, cfg.prune_ratio, cfg.min_heads_per_layer or 0)
