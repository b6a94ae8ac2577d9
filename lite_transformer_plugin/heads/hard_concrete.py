"""Hard concrete gates: in [0, 1], often exactly 0 or 1, and yet with gradients.

Louizos et al. 2018, section 2.3, for weights; Voita et al. 2019, section 5, for attention heads. A
gate has one parameter, log_a. In training it is drawn anew for every pass; the larger log_a is, the
more often it is 1. How likely it is not 0 is known exactly, which is what a penalty needs.

    g = clip(sigmoid((log u - log(1 - u) + log_a) / T) * (HIGH - LOW) + LOW, 0, 1),  u uniform
"""

import math

import torch
from torch import Tensor

TEMPERATURE = 0.33
LOW, HIGH = -0.1, 1.1  # the sigmoid is stretched to these before it is clipped


def draw(log_a: Tensor, uniform: Tensor | None = None) -> Tensor:
    """A random gate for each parameter, in the shape of ``log_a``.

    Args:
        uniform: numbers in [0, 1) of that shape instead of those of torch's generator.
    """
    noise = torch.rand_like(log_a) if uniform is None else uniform
    return _stretch((torch.logit(noise) + log_a) / TEMPERATURE)


def without_noise(log_a: Tensor) -> Tensor:
    """The gates at test, in the shape of ``log_a``."""
    return _stretch(log_a)


def _stretch(logits: Tensor) -> Tensor:
    return (torch.sigmoid(logits) * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def probability_open(log_a: Tensor) -> Tensor:
    """P(g > 0) of a gate in training, in the shape of ``log_a``."""
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))
