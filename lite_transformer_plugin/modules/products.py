"""Batched products of single rows, which decoding step by step is full of."""

import torch
from torch import Tensor


def is_small(queries: Tensor, keys: Tensor) -> bool:
    """Whether torch multiplies such batches, a row by a matrix, with a slow loop: on a CPU it does
    so below 400 products."""
    return queries.size(1) == 1 and keys.size(1) * keys.size(2) < 400 and not keys.is_cuda


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """``torch.bmm`` of weights (N, T, S) and values (N, S, R): (N, T, R)."""
    if is_small(weights, values):
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True)
    return torch.bmm(weights, values)


def similarity(queries: Tensor, keys: Tensor) -> Tensor:
    """``torch.bmm`` of queries (N, T, R) and transposed keys (N, S, R): (N, T, S)."""
    if is_small(queries, keys):
        return (queries * keys).sum(2).unsqueeze(1)
    return torch.bmm(queries, keys.transpose(1, 2))
