"""LSRA as a whole: split, padding, chunks, reordering, precision, TorchScript."""

import itertools

import pytest
import torch
from conftest import randomise
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import future_mask, padding
from torch import Tensor
from torch.testing import assert_close

from lite_transformer_plugin.modules.convolution_branch import ConvolutionBranch
from lite_transformer_plugin.modules.long_short_range_attention import (
    LongShortRangeAttention,
    LSRAConfig,
)

TIGHT = dict(rtol=0, atol=1e-11)
KINDS = list(itertools.product(["lightweight", "dynamic"], [True, False], [True, False]))


def lsra(conv_type="dynamic", glu=True, causal=False, kernel_size=5, **kwargs):
    """Unequal branches of 8 and 4 channels, every weight and bias random."""
    cfg = LSRAConfig(8, 4, 2, 2, kernel_size, conv_type, glu, causal, **kwargs)
    return randomise(LongShortRangeAttention(cfg)).double().eval()


def run(module, x, mask=None, causal=False, **kwargs):
    attn_mask = future_mask(x.size(0), x.dtype) if causal else None
    return module(x, x, x, key_padding_mask=mask, attn_mask=attn_mask, **kwargs)[0]


def test_channels_are_split_in_order():
    """The first channels attend, the rest convolve, outputs are concatenated, nothing mixes."""
    module = lsra()
    x = torch.randn(6, 2, 12, dtype=torch.double)
    output, weights = module(x, need_weights=True)
    attended, expected_weights = module.attention(x[..., :8])
    assert_close(output[..., :8], attended, **TIGHT)
    assert_close(output[..., 8:], module.convolution(x[..., 8:]), **TIGHT)
    assert_close(weights, expected_weights, **TIGHT)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("conv_type, glu, causal", KINDS)
@pytest.mark.parametrize("kernel_size", [4, 5, 31])
def test_a_padded_batch_equals_single_sentences(conv_type, glu, causal, kernel_size, left):
    module = lsra(conv_type, glu, causal, kernel_size)
    lengths = (7, 4, 1)
    batch = torch.randn(7, 3, 12, dtype=torch.double)  # padding holds noise, too
    output = run(module, batch, padding(*lengths, left=left), causal)
    for i, n in enumerate(lengths):
        own = slice(7 - n, 7) if left else slice(0, n)
        single = run(module, batch[own, i : i + 1], None, causal)
        assert_close(output[own, i : i + 1], single, **TIGHT)


def test_masking_the_input_would_leak():
    """The authors' order, mask before linear1, differs: this is what the test above would see."""
    branch = randomise(ConvolutionBranch(4, 3, 2, "dynamic", True, False)).double()
    x, mask = torch.randn(5, 1, 4, dtype=torch.double), padding(5)
    mask[0, 3:] = True
    before = branch(x.masked_fill(mask.T.unsqueeze(-1), 0))
    assert (before[2] - branch(x, mask)[2]).abs().max() > 1e-3


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from(KINDS), st.data())
@settings(max_examples=40, deadline=None)
def test_chunks_with_reordering_equal_the_full_pass(lengths, kind, data):
    """After every chunk a beam search reshuffles the batch; each row keeps its own past."""
    module = lsra(kind[0], kind[1], causal=True)
    x = torch.randn(sum(lengths), 3, 12, dtype=torch.double)
    past, state, start = x[:0], {}, 0
    for n in lengths:
        chunk = x[start : start + n]
        past = torch.cat([past, chunk])
        output = module(chunk, incremental_state=state)[0]
        assert_close(output, run(module, past, causal=True)[-n:], **TIGHT)
        order = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=3)))
        for part in module.modules():
            if hasattr(part, "reorder_incremental_state"):
                part.reorder_incremental_state(state, order)
        past, start = past[:, order], start + n


@pytest.mark.parametrize("chunks", [[1] * 6, [2, 3, 1], [6]])
def test_padded_chunks_equal_single_sentences(chunks):
    """Left-padded prefixes: whole chunks of a row may be padding."""
    module = lsra(causal=True)
    mask = padding(6, 4, 1, left=True)
    x = torch.randn(6, 3, 12, dtype=torch.double)
    state = {}
    pairs = zip(x.split(chunks), mask.split(chunks, dim=1), strict=True)
    output = torch.cat(
        [module(c, key_padding_mask=m, incremental_state=state)[0] for c, m in pairs]
    )
    for i, n in enumerate((6, 4, 1)):
        single = run(module, x[6 - n :, i : i + 1], causal=True)
        assert_close(output[6 - n :, i : i + 1], single, **TIGHT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("conv_type, glu, causal", KINDS)
def test_half_precision_and_padded_rows_are_finite(conv_type, glu, causal, dtype):
    module = lsra(conv_type, glu, causal).to(dtype)
    x, mask = torch.randn(6, 3, 12).to(dtype), padding(6, 3, 0)
    output = run(module, x, mask, causal)
    output.float().sum().backward()
    assert output.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    single = run(module.double(), x.double(), mask, causal)[:, 0]
    assert_close(output[:, 0].double(), single, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("conv_type, glu, causal", KINDS)
def test_gradient(conv_type, glu, causal):
    module = lsra(conv_type, glu, causal, kernel_size=4)
    x = torch.randn(4, 2, 12, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: run(module, x, padding(4, 2), causal), (x,))


class InChunks(torch.nn.Module):
    """Decodes chunk after chunk; a scripted module keeps its state only inside TorchScript."""

    def __init__(self, lsra):
        super().__init__()
        self.lsra = lsra

    def forward(self, chunks: list[Tensor]) -> Tensor:
        state: dict[str, dict[str, Tensor | None]] = {}
        outputs: list[Tensor] = []
        for chunk in chunks:
            outputs.append(self.lsra(chunk, incremental_state=state)[0])
        return torch.cat(outputs)


@pytest.mark.parametrize("conv_type, glu, causal", KINDS)
def test_scripted_equals_eager(conv_type, glu, causal):
    module = lsra(conv_type, glu, causal)
    scripted = torch.jit.script(module)
    x = torch.randn(6, 3, 12, dtype=torch.double)
    mask = padding(6, 3, 2)
    assert_close(run(scripted, x, mask, causal), run(module, x, mask, causal), **TIGHT)
    if causal:
        stepwise = torch.jit.script(InChunks(module))
        assert_close(stepwise(list(x.split([1, 2, 3]))), run(module, x, None, True), **TIGHT)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(attention_heads=3), "3 attention heads do not divide the 8 channels"),
        (dict(conv_heads=3), "3 convolution heads do not divide the 4 channels"),
        (dict(attention_dim=0), "positive sizes"),
        (dict(conv_dim=-4), "positive sizes"),
        (dict(kernel_size=0), "kernel size 0 is impossible"),
        (dict(conv_type="depthwise"), "unknown convolution type 'depthwise': choose one of"),
    ],
)
def test_bad_sizes(change, message):
    sizes = dict(attention_dim=8, conv_dim=4, attention_heads=2, conv_heads=2) | change
    with pytest.raises(ValueError, match=message) as error:
        LongShortRangeAttention(LSRAConfig(**sizes))
    assert "\n" not in str(error.value)
