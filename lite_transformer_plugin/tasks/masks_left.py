"""What a task masks in a model that has lost some of its heads since it was trained."""

import logging
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fairseq.tasks.translation import TranslationConfig
from torch import nn

from ..heads import Head, format_heads
from .prune_heads_flags import PruneHeadsConfig, heads_to_mask

logger = logging.getLogger(__name__)

STOCK = fields(TranslationConfig)
DEFAULTS = {flag.name: flag.default for flag in fields(PruneHeadsConfig) if flag not in STOCK}
CHOICES = ("mask_heads", "keep_heads", "prune_ratio")


def masks_left(
    task: Mapping[str, Any], removed: Iterable[Head], model: nn.Module
) -> dict[str, Any]:
    """Options by which the task of a checkpoint masks the same heads, but for those removed.

    They name the heads, since a share of a smaller model is another one, and leave a schedule out.
    A task without a mask needs none. If the importance file of a share is gone or unfit no head is
    masked any more, and a warning says so.

    Args:
        task: the configuration in the checkpoint.
        model: before the removal.
    """
    told = {name: task.get(name, default) for name, default in DEFAULTS.items()}
    if task.get("_name") != "prune_heads" or all(told[name] is None for name in CHOICES):
        return {}
    try:
        left = set(heads_to_mask(Namespace(**told), model)) - set(removed)
    except ValueError as error:
        logger.warning("the pruned model has none of the masks of its training: %s", error)
        left = set()
    rescale = bool(left) and told["rescale_heads"]
    return DEFAULTS | {"mask_heads": format_heads(left) or None, "rescale_heads": rescale}
