"""Attention heads of any fairseq model: name, gate, score, ablate, order and remove them.

Michel et al. 2019, *Are Sixteen Heads Really Better than One?*
"""

from .gates import gated, mask_heads, masked, set_gates
from .names import Head, attentions, check_heads, format_heads, list_heads, parse_heads

__all__ = [
    "Head",
    "attentions",
    "check_heads",
    "format_heads",
    "gated",
    "list_heads",
    "mask_heads",
    "masked",
    "parse_heads",
    "set_gates",
]
