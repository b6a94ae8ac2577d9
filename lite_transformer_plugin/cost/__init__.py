"""What a model costs: Mult-Adds, parameters, bytes, latency; and what would cost as much."""

from .counting import (
    CONVENTIONS,
    PARTS,
    PHONE_MULT_ADDS,
    PLACES,
    Cost,
    count,
    fits_phone,
    stored_bytes,
)
from .rules import Lengths

__all__ = [
    "CONVENTIONS",
    "PARTS",
    "PHONE_MULT_ADDS",
    "PLACES",
    "Cost",
    "Lengths",
    "count",
    "fits_phone",
    "stored_bytes",
]
