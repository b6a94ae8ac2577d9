"""Attention heads of any fairseq model: name, gate, score, ablate, order and remove them.

Michel et al. 2019, *Are Sixteen Heads Really Better than One?*
"""

from .gates import gated, mask_heads, masked, set_gates
from .importance import measure
from .names import Head, attentions, check_heads, format_heads, list_heads, parse_heads
from .removal import remove_heads_

__all__ = [
    "Head",
    "attentions",
    "check_heads",
    "format_heads",
    "gated",
    "list_heads",
    "mask_heads",
    "masked",
    "measure",
    "parse_heads",
    "remove_heads_",
    "set_gates",
]
