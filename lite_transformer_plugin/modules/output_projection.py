"""The projection onto the vocabulary, multiplied as a CPU does it fastest while decoding."""

import torch
from torch import Tensor

FEW_ROWS = 8  # sentences times beam; at 4 another layout is faster, at 64 it is slower


def word_scores(x: Tensor, weight: Tensor) -> Tensor:
    """``F.linear(x, weight)`` without gradients: scores (..., V) of features x (..., C).

    With few rows the large matrix is read once, in its own order; with more, piece by piece, so
    that weights and scores of a piece stay in the cache.
    """
    rows = x.reshape(-1, x.size(-1))
    if rows.size(0) <= 8:
        scores = torch.mm(weight, rows.t()).t().contiguous()
    else:
        words, step = weight.size(0), 2048
        scores = rows.new_empty(rows.size(0), words)
        for first in range(0, words, step):
            piece = weight[first : first + step]
            torch.mm(rows, piece.t(), out=scores[:, first : first + step])
    return scores.view(x.size()[:-1] + (weight.size(0),))
