"""Both convolutions against a loop written from the paper's formula."""

import pytest
import torch
import torch.nn.functional as F
from conftest import randomise
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lite_transformer_plugin.modules.depthwise_convolution import (
    DynamicConvolution,
    LightweightConvolution,
    band_matrix,
)

CONVOLUTIONS = [LightweightConvolution, DynamicConvolution]


def by_loop(module, x):
    """output[t, b, c] = sum over k of tap[t, head of c, k] * x[t + k - left, b, c]."""
    steps, batch, channels = x.shape
    if isinstance(module, DynamicConvolution):
        taps = module.kernel_linear(x).view(steps, batch, module.heads, -1)
    else:
        taps = module.weight.squeeze(1).expand(steps, batch, -1, -1)
    taps = F.softmax(taps, dim=-1) if module.weight_softmax else taps
    size = module.kernel_size
    left = size - 1 if module.causal else (size - 1) // 2
    out = torch.zeros_like(x)
    for t in range(steps):
        for k in range(size):
            if 0 <= t + k - left < steps:
                for c in range(channels):
                    head = c // (channels // module.heads)
                    out[t, :, c] += taps[t, :, head, k] * x[t + k - left, :, c]
    return out


def make(cls, kernel_size=3, causal=False, heads=2, **kwargs):
    module = cls(6, kernel_size, heads, causal, **kwargs)
    return randomise(module.double()).eval()


@pytest.mark.parametrize("weight_softmax", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7, 31])
@pytest.mark.parametrize("cls", CONVOLUTIONS)
def test_equals_a_loop(cls, kernel_size, causal, weight_softmax):
    """Odd and even kernels, also longer than the sentence, also for one token."""
    module = make(cls, kernel_size, causal, weight_softmax=weight_softmax)
    for steps in (1, 2, 9):
        x = torch.randn(steps, 3, 6, dtype=torch.double)
        assert_close(module(x), by_loop(module, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cls", CONVOLUTIONS)
def test_blocks_do_not_show(cls, causal):
    module = make(cls, 7, causal)
    x = torch.randn(50, 2, 6, dtype=torch.double)
    whole = module(x)
    for block in (1, 5, 7, 16):
        module.block = block
        assert_close(module(x), whole, rtol=0, atol=1e-12)


def test_band_matrix():
    band = band_matrix(torch.tensor([[[1, 2], [3, 4], [5, 6]]]))
    assert band.tolist() == [[[1, 2, 0, 0], [0, 3, 4, 0], [0, 0, 5, 6]]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cls", CONVOLUTIONS)
def test_gradient(cls, causal):
    module = make(cls, 4, causal)
    x = torch.randn(5, 2, 6, dtype=torch.double, requires_grad=True)
    names, values = zip(*module.named_parameters(), strict=True)

    def function(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *values))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from(CONVOLUTIONS),
)
@settings(max_examples=40, deadline=None)
def test_any_chunks_equal_the_full_pass(lengths, kernel_size, cls):
    module = make(cls, kernel_size, causal=True)
    x = torch.randn(sum(lengths), 2, 6, dtype=torch.double)
    state = {}
    chunks = [module(chunk, state) for chunk in x.split(lengths)]
    assert_close(torch.cat(chunks), module(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", CONVOLUTIONS)
def test_drop_connect_drops_taps(cls):
    """All taps dropped: nothing passes. In evaluation nothing is dropped."""
    module = make(cls, weight_dropout=1.0)
    x = torch.randn(5, 2, 6, dtype=torch.double)
    assert module(x).abs().sum() > 0
    assert module.train()(x).abs().sum() == 0


def test_lightweight_drop_connect_is_shared_by_batch_and_time():
    """The H x K weights are dropped, not entries of the band: every column sees the same kernel."""
    module = make(LightweightConvolution, 3, heads=1, weight_dropout=0.5).train()
    ones = torch.ones(9, 4, 6, dtype=torch.double)
    inner = module(ones)[1:-1]  # away from the edges all kernels fit
    assert_close(inner, inner[:1, :1, :1].expand_as(inner))


@pytest.mark.parametrize("cls", CONVOLUTIONS)
@pytest.mark.parametrize(
    "sizes, message",
    [
        ((6, 3, 4), "4 convolution heads do not divide the 6 channels"),
        ((6, 0, 2), "kernel size 0 is impossible"),
        ((-6, 3, 2), "-6 channels"),
        ((6, 3, 0), "0 heads"),
    ],
)
def test_impossible_sizes(cls, sizes, message):
    with pytest.raises(ValueError, match=message):
        cls(*sizes, causal=False)
