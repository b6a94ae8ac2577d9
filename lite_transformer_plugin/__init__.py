"""Lite Transformer and attention-head pruning for fairseq: `--user-dir lite_transformer_plugin`."""

__version__ = "0.1.0"

from . import compat

compat.mend()

from . import rouge  # noqa: E402, F401  (registers with fairseq)
from .criterions import head_mask  # noqa: E402, F401
from .huggingface import tokenizer  # noqa: E402, F401
from .models import (  # noqa: E402, F401
    bert,
    compressed,
    lite_transformer,
    lite_transformer_lm,
    presets,
    pruned,
)
from .tasks import prune_heads  # noqa: E402, F401
