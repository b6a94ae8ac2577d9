"""Smaller checkpoints: fewer weights, fewer values, one file (Lite Transformer, section 5.5)."""

from .container import KEY, Sizes, expand_all, is_packed, pack, sizes, unpack
from .quantize import Coded, Lookup, check_bits, expand, keep, kmeans, quantize
from .sparsify import allocate, fill_in, magnitude_mask, sensitivity

__all__ = [
    "Coded",
    "KEY",
    "Lookup",
    "Sizes",
    "allocate",
    "check_bits",
    "expand",
    "expand_all",
    "fill_in",
    "is_packed",
    "keep",
    "kmeans",
    "magnitude_mask",
    "pack",
    "quantize",
    "sensitivity",
    "sizes",
    "unpack",
]
