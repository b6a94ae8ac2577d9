"""k-means codebooks: against scikit-learn and a brute-force optimum; zeros; gradients."""

import itertools
import time

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch.testing import assert_close

from lite_transformer_plugin.compression import Lookup, expand, keep, kmeans, quantize
from lite_transformer_plugin.compression.quantize import nearest, rounded


def values(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def error(x: torch.Tensor, centroids: torch.Tensor) -> float:
    return float((x[:, None].double() - centroids).square().min(dim=1).values.sum())


@pytest.mark.parametrize("clusters", [4, 8, 32])
def test_as_scikit_learn_from_the_same_start(clusters):
    x = values(2000).double()
    start = np.linspace(x.min(), x.max(), clusters)[:, None]
    theirs = KMeans(clusters, init=start, n_init=1, tol=0, max_iter=1000).fit(x[:, None].numpy())
    ours = kmeans(x, clusters, rounds=1000)
    assert_close(ours, torch.tensor(np.sort(theirs.cluster_centers_[:, 0])), rtol=0, atol=1e-9)


def optimum(x: list[float], clusters: int) -> float:
    """The least error of all ways to cut the sorted values into ranges."""
    x, best = np.sort(x), np.inf
    for cuts in itertools.combinations(range(1, len(x)), clusters - 1):
        parts = np.split(x, cuts)
        best = min(best, sum(((part - part.mean()) ** 2).sum() for part in parts))
    return best


def test_clusters_that_lie_apart_are_found():
    x = torch.cat([centre + 0.1 * values(4, int(centre) + 9) for centre in (-7.0, 0.0, 1.0, 8.0)])
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    # two of the four linear starts lie far from the two clusters in the middle
    assert error(x, kmeans(x, 4)) == pytest.approx(optimum(x.tolist(), 4), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_near_the_optimum(seed):
    x = values(14, seed)
    assert optimum(x.tolist(), 4) - 1e-9 <= error(x, kmeans(x, 4)) <= 2 * optimum(x.tolist(), 4)


def test_one_value_and_none():
    assert_close(kmeans(torch.full((9,), 2.5), 4), torch.full((4,), 2.5, dtype=torch.float64))
    assert kmeans(torch.zeros(0), 4).shape == (4,)


def test_a_million_values_take_seconds():
    x, start = values(1_000_000), time.process_time()
    kmeans(x, 256)
    assert time.process_time() - start < 15


def test_codes_are_those_of_the_nearest():
    x, centroids = values(500), kmeans(values(500), 16)
    distance = (x[:, None].double() - centroids).abs()
    assert torch.equal(distance.argmin(dim=1).to(torch.uint8), nearest(x, centroids))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_every_weight_has_one_of_few_values(bits):
    weight = values(60 * 40).view(60, 40)
    weight[3] = 0
    found = expand(quantize(weight, bits))
    assert found.shape == weight.shape and found.dtype == weight.dtype
    assert torch.equal(found == 0, weight == 0)
    assert len(found[found != 0].unique()) <= 2**bits
    error = (found - weight).square().mean()
    assert error < 8 / 2 ** (2 * bits)  # of the variance: 6 dB a bit, and some


def test_more_bits_are_nearer():
    weight = values(4000).view(80, 50)
    errors = [(expand(quantize(weight, b)) - weight).square().mean() for b in range(2, 9)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-4


def test_rows_with_codebooks_of_their_own():
    """Rows of different size; the last group is smaller, and zeros fall out of two groups."""
    weight = values(50 * 20).view(50, 20) * torch.arange(1, 51)[:, None]
    weight[::7, ::2] = 0
    grouped, one = quantize(weight, 4, group_rows=8), quantize(weight, 4)
    assert grouped.values.shape == (7, 16) and one.values.shape == (1, 16)
    for start in range(0, 50, 8):
        part = weight[start : start + 8]
        assert torch.equal(expand(grouped)[start : start + 8], expand(quantize(part, 4)))
    assert (expand(grouped) - weight).norm() < 0.7 * (expand(one) - weight).norm()


@pytest.mark.parametrize("bits", [0, 1, 9, 2.5])
def test_bits_that_codes_cannot_have(bits):
    with pytest.raises(ValueError, match="codes have 2 to 8 bits"):
        quantize(values(8).view(2, 4), bits)


def test_what_is_no_number():
    with pytest.raises(ValueError, match="not finite"):
        quantize(torch.tensor([[1.0, float("nan")]]), 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_tensors_that_are_kept(dtype):
    tensor = (values(30) * 100).to(dtype).view(5, 6)
    assert torch.equal(expand(keep(tensor)), tensor) and expand(keep(tensor)).dtype == dtype


def test_kept_tensors_are_rounded_to_half_precision_once():
    tensor = values(50)
    assert torch.equal(expand(keep(tensor)), tensor.half().float())
    assert torch.equal(expand(keep(tensor, exact=True)), tensor)
    assert torch.equal(expand(rounded(keep(tensor, exact=True))), tensor.half().float())
    assert torch.equal(expand(keep(tensor * 1e6)), tensor * 1e6)  # half precision cannot hold it


def test_a_gradient_is_the_sum_over_the_weights_of_a_code():
    v, index = values(5).double().requires_grad_(), torch.tensor([0, 4, 4, 1, 0, 4])
    upstream = values(6, 3)
    Lookup.apply(v, index).mul(upstream).sum().backward()
    sums = [float(upstream[index == code].sum()) for code in range(5)]
    assert_close(v.grad, torch.tensor(sums, dtype=torch.float64), rtol=1e-6, atol=1e-6)
