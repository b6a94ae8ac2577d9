"""Lite Transformer and attention-head pruning for fairseq: `--user-dir lite_transformer_plugin`."""

__version__ = "0.1.0"

from . import compat

compat.mend()

from .criterions import head_mask  # noqa: E402, F401  (registers with fairseq)
from .models import lite_transformer, lite_transformer_lm, presets, pruned  # noqa: E402, F401
from .tasks import prune_heads  # noqa: E402, F401
