"""Both ways of multiplying give the same, at sizes on either side of the limit."""

import pytest
import torch
from torch.testing import assert_close

from lite_transformer_plugin.modules.output_projection import OutputProjection
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


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_output_projection_equals_linear(rows):
    weight = torch.nn.Parameter(torch.randn(5000, 6, dtype=torch.double))
    projection = OutputProjection(weight)
    x = torch.randn(rows, 1, 6, dtype=torch.double)
    expected = torch.nn.functional.linear(x, weight)
    projection.make_generation_fast_()
    with torch.no_grad():
        assert_close(projection(x), expected)
    projection(x).sum().backward()  # still a layer that can be trained
    assert_close(weight.grad, x.sum(0).expand(5000, 6))


def test_output_projection_shares_its_weight():
    weight = torch.nn.Parameter(torch.randn(12, 6))
    assert OutputProjection(weight).weight is weight
