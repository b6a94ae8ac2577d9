"""The attention branch against fairseq's own module with the same weights."""

import pytest
import torch
from conftest import randomise
from fairseq.modules import MultiheadAttention
from torch.testing import assert_close

from lite_transformer_plugin.modules.attention import SelfAttention

TIGHT = dict(rtol=0, atol=1e-12)


def future_mask(steps: int, dtype=torch.double) -> torch.Tensor:
    return torch.full((steps, steps), float("-inf"), dtype=dtype).triu(1)


@pytest.fixture
def pair():
    ours = randomise(SelfAttention(8, 2, self_attention=True)).double().eval()
    stock = MultiheadAttention(8, 2, self_attention=True).double().eval()
    stock.load_state_dict(ours.state_dict())
    return ours, stock


def padding(*lengths: int, left: bool = False) -> torch.Tensor:
    """(B, T), true at padding."""
    steps = max(lengths)
    rows = [[i >= n for i in range(steps)] for n in lengths]
    return torch.tensor([row[::-1] for row in rows] if left else rows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_equals_fairseq(pair, causal, padded):
    ours, stock = pair
    x = torch.randn(6, 3, 8, dtype=torch.double)
    mask = padding(6, 4, 1) if padded else None
    attn_mask = future_mask(6) if causal else None
    expected, _ = stock(x, x, x, key_padding_mask=mask, attn_mask=attn_mask, need_weights=False)
    output, weights = ours(x, key_padding_mask=mask, attn_mask=attn_mask, need_weights=False)
    real = torch.ones(6, 3, dtype=torch.bool) if mask is None else ~mask.T
    assert weights is None
    assert_close(output[real], expected[real], **TIGHT)


def test_weights_equal_fairseq(pair):
    ours, stock = pair
    x, mask = torch.randn(6, 3, 8, dtype=torch.double), padding(6, 6, 6)
    stock._set_skip_embed_dim_check()  # its long path, the one that knows heads
    for per_head in (False, True):
        expected = stock(x, x, x, mask, need_head_weights=per_head)
        output = ours(x, x, x, mask, need_head_weights=per_head)
        # fairseq's softmax is in single precision
        assert_close(output, expected, rtol=0, atol=1e-6, check_dtype=False)


def test_both_paths_agree(pair):
    """With and without returned weights: explicit products and torch's fused ones."""
    ours, _ = pair
    x, mask = torch.randn(6, 3, 8, dtype=torch.double), padding(6, 2, 3, left=True)
    with_weights, _ = ours(x, key_padding_mask=mask, attn_mask=future_mask(6))
    without, _ = ours(x, key_padding_mask=mask, attn_mask=future_mask(6), need_weights=False)
    assert_close(with_weights, without, **TIGHT)


def test_cached_steps_equal_fairseq(pair):
    ours, stock = pair
    states = ({}, {})
    for step in torch.randn(5, 3, 8, dtype=torch.double).split(1):
        output = [
            module(step, step, step, incremental_state=state, need_weights=False)[0]
            for module, state in zip(pair, states, strict=True)
        ]
        assert_close(output[0], output[1], rtol=0, atol=1e-6)
    names = ("prev_key", "prev_value")
    for name in names:  # the cache itself is interchangeable
        assert_close(
            ours._get_input_buffer(states[0])[name], stock._get_input_buffer(states[1])[name]
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [True, False])
def test_fully_padded_rows_are_finite(causal, dtype):
    """Also the gradients: a NaN in one row would reach every weight."""
    module = randomise(SelfAttention(8, 2, self_attention=True)).to(dtype)
    mask = padding(5, 5, 0, left=True)
    mask[1] = True
    x = torch.randn(5, 3, 8, dtype=dtype)
    attn_mask = future_mask(5, dtype) if causal else None
    for need_weights in (True, False):
        module.zero_grad()
        output, _ = module(x, key_padding_mask=mask, attn_mask=attn_mask, need_weights=need_weights)
        output.float().sum().backward()
        assert output.isfinite().all()
        assert all(p.grad.isfinite().all() for p in module.parameters())
