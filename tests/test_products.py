"""Both ways of multiplying give the same, at sizes on either side of the limit."""

import pytest
import torch
from torch.testing import assert_close

from lite_transformer_plugin.modules.output_projection import word_scores
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
@pytest.mark.parametrize("words", [12, 5000])
def test_word_scores_equal_linear(rows, words):
    weight = torch.randn(words, 6, dtype=torch.double)
    x = torch.randn(rows, 1, 6, dtype=torch.double)
    assert_close(word_scores(x, weight), torch.nn.functional.linear(x, weight))
