"""Both ways of multiplying give the same, at sizes on either side of the limit."""

import copy

import pytest
import torch
from torch.testing import assert_close

from lite_transformer_plugin.modules.output_projection import PackedMatrix
from lite_transformer_plugin.modules.products import is_small, similarity, weighted_sum


@pytest.mark.parametrize("positions, small", [(5, True), (80, False)])
def test_products_equal_bmm(positions, small):
    values = torch.randn(6, positions, 7, dtype=torch.double)
    weights = torch.randn(6, 1, positions, dtype=torch.double)
    queries = torch.randn(6, 1, 7, dtype=torch.double)
    assert is_small(weights, values) == small
    assert_close(weighted_sum(weights, values), torch.bmm(weights, values))
    assert_close(similarity(queries, values), torch.bmm(queries, values.transpose(1, 2)))


def test_several_rows_are_never_small():
    assert not is_small(torch.zeros(6, 2, 5), torch.zeros(6, 5, 7))


@pytest.mark.parametrize("rows", [1, 8, 65])
def test_packed_product_equals_linear(rows):
    packed = PackedMatrix(torch.randn(500, 6))
    x = torch.randn(rows, 2, 6)
    expected = torch.nn.functional.linear(x, packed.weight)
    assert_close(packed.product(x), expected)
    assert_close(packed.product(x[:, 1]), expected[:, 1])  # rows that lie apart
    assert packed.product(x[:0]).size() == (0, 2, 500)


def test_a_copy_of_a_packed_matrix_follows_its_own_weight():
    model = {"weight": torch.ones(5, 3)}
    model["packed"] = PackedMatrix(model["weight"])
    other = copy.deepcopy(model)
    assert other["packed"].weight is other["weight"]
    x = torch.ones(1, 3)
    assert_close(other["packed"].product(x), model["packed"].product(x))


def test_only_single_precision_is_packed():
    assert PackedMatrix.fits(torch.ones(5, 3))
    assert not PackedMatrix.fits(torch.ones(5, 3, dtype=torch.double))
    assert not PackedMatrix.fits(torch.ones(5, 3, device="meta"))
