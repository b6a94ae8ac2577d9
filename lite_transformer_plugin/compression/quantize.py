"""Weights as codes of a few shared values (Han et al. 2016, "Deep Compression", section 3).

The values of a tensor, or of a group of its rows, are the centroids of a k-means in one dimension.
Exact zeros are no value of a codebook: where they are is kept apart, and they stay zeros.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

BITS = range(2, 9)
HALF_LIMIT = 60_000.0  # float16 ends at 65504
ROUNDS = 300  # Lloyd steps at most; a step takes time by the clusters, not by the values


@dataclass(frozen=True)
class Coded:
    """A tensor in the form in which it is stored.

    With ``codes`` a weight is ``values[group, code]``, where rows come in groups of ``group_rows``;
    without them ``values`` are the weights themselves. ``positions`` say where the weights are that
    are no zeros; None if all are stored. Weights follow each other as in the flat tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype  # of the tensor; values may be stored in fewer bits
    values: Tensor  # (G, K) centroids, or (N) weights
    codes: Tensor | None = None  # (N) uint8
    positions: Tensor | None = None  # (numel) bool
    bits: int = 0
    group_rows: int = 0  # 0: one group

    def index(self) -> Tensor:
        """Where in the flat ``values`` each of the N weights has its own, as int32."""
        codes = self.codes.int()
        if len(self.values) == 1:
            return codes
        row_size = self.numel // self.shape[0]
        rows = torch.arange(self.numel, dtype=torch.int64) // row_size
        group = (rows // self.group_rows).int()
        if self.positions is not None:
            group = group[self.positions]
        return codes + group * self.values.shape[1]

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def stored(self) -> int:
        """How many weights are no zeros, or all."""
        return len(self.values) if self.codes is None else len(self.codes)

    def with_values(self, values: Tensor) -> "Coded":
        return replace(self, values=values.detach())


def check_bits(bits: Any) -> int:
    """
    Raises:
        ValueError: if codes cannot have so many bits.
    """
    if bits not in BITS:
        raise ValueError(f"--bits {bits}: codes have {BITS[0]} to {BITS[-1]} bits")
    return int(bits)


# --- k-means --------------------------------------------------------------------------------------


def kmeans(values: Tensor, clusters: int, rounds: int = ROUNDS) -> Tensor:
    """Centroids (clusters) of these values (N), ascending, in float64.

    Lloyd's steps from centroids at equal distances between the least and the largest value (linear
    initialisation, the best of three in Deep Compression). In one dimension a cluster is a range of
    the sorted values, so sums over it are differences of prefix sums. A centroid without values
    stays where it is.
    """
    ordered = values.detach().double().flatten().sort().values
    if not len(ordered):
        return torch.zeros(clusters, dtype=torch.float64)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centroids = torch.linspace(ordered[0].item(), ordered[-1].item(), clusters, dtype=torch.float64)
    ends_before = None
    for _ in range(rounds):
        ends = torch.searchsorted(ordered, (centroids[1:] + centroids[:-1]) / 2)
        ends = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(ordered))])
        if ends_before is not None and torch.equal(ends, ends_before):
            break
        ends_before, counts = ends, ends.diff()
        means = sums[ends].diff() / counts.clamp(min=1)
        centroids = torch.where(counts > 0, means, centroids)
    return centroids


def nearest(values: Tensor, centroids: Tensor) -> Tensor:
    """The code (N, uint8) of the centroid nearest to each value; centroids ascend."""
    bounds = (centroids[1:] + centroids[:-1]) / 2
    return torch.bucketize(values.to(bounds.dtype), bounds, out_int32=True).to(torch.uint8)


# --- tensors --------------------------------------------------------------------------------------


def quantize(weight: Tensor, bits: int, group_rows: int = 0) -> Coded:
    """A tensor as codes of ``bits`` bits; its zeros stay zeros.

    Args:
        group_rows: rows that share a codebook; 0 for one codebook.

    Raises:
        ValueError: for bits outside 2 to 8, or a tensor with values that are no numbers.
    """
    check_bits(bits)
    if not torch.isfinite(weight).all():
        raise ValueError("it holds values that are not finite")
    weight = weight.detach().cpu()
    groups = weight.split(group_rows) if group_rows else (weight,)
    centroids, codes = [], []
    for group in groups:
        stored = group[group != 0]
        centres = _stored_form(kmeans(stored, 2**bits)).sort().values
        centroids.append(centres)
        codes.append(nearest(stored, centres.double()))
    dtype = max((centres.dtype for centres in centroids), key=lambda dtype: dtype.itemsize)
    return Coded(
        shape=tuple(weight.shape),
        dtype=weight.dtype,
        values=torch.stack([centres.to(dtype) for centres in centroids]),
        codes=torch.cat(codes),
        positions=_positions(weight),
        bits=bits,
        group_rows=group_rows if len(groups) > 1 else 0,
    )


def keep(tensor: Tensor, exact: bool = False) -> Coded:
    """A tensor without codes: its zeros left out if there are many, and rounded to float16.

    Args:
        exact: not rounded. Tensors of other types than float32 are never rounded.
    """
    tensor = tensor.detach().cpu()
    positions = _positions(tensor)
    if positions is not None and 2 * int(positions.sum()) > 1.9 * tensor.numel():
        positions = None  # for a few zeros their places cost more than they do
    flat = tensor.flatten() if positions is None else tensor.flatten()[positions]
    values = flat if exact or tensor.dtype != torch.float32 else _stored_form(flat)
    return Coded(tuple(tensor.shape), tensor.dtype, values.clone(), positions=positions)


def expand(coded: Coded) -> Tensor:
    """The tensor: the same bits on every machine."""
    values = coded.values.detach().to(coded.dtype)
    if coded.codes is not None:
        values = values.flatten().index_select(0, coded.index())
    if coded.positions is None:
        return values.reshape(coded.shape).clone()
    full = torch.zeros(coded.numel, dtype=coded.dtype)
    full[coded.positions] = values
    return full.reshape(coded.shape)


def rounded(coded: Coded) -> Coded:
    """The same with values of training rounded as `quantize` and `keep` round them."""
    if coded.dtype != torch.float32:
        return coded
    return coded.with_values(_stored_form(coded.values))


def _positions(tensor: Tensor) -> Tensor | None:
    positions = tensor.flatten() != 0
    return None if bool(positions.all()) else positions


def _stored_form(values: Tensor) -> Tensor:
    """In half precision unless that cannot hold them."""
    fits = not values.numel() or values.abs().max() < HALF_LIMIT
    return values.to(torch.float16 if fits else torch.float32)


# --- fine-tuning ----------------------------------------------------------------------------------


class Lookup(torch.autograd.Function):
    """values (V), index (N) -> weights (N); a value's gradient is the sum over all its weights."""

    @staticmethod
    def forward(ctx, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(values)
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        # in float32 also for float16: a code has thousands of weights
        sums = torch.zeros(ctx.size, dtype=torch.float32, device=gradient.device)
        sums.index_add_(0, index, gradient.float())
        return sums.to(gradient.dtype), None
