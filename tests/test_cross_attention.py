"""Encoder-decoder attention against fairseq's own module with the same weights."""

import pytest
import torch
from conftest import randomise
from fairseq.modules import MultiheadAttention
from torch.testing import assert_close

from lite_transformer_plugin.modules.cross_attention import CrossAttention

SIZES = dict(embed_dim=8, num_heads=2, kdim=6, vdim=6, encoder_decoder_attention=True)
CLOSE = dict(rtol=0, atol=1e-6, check_dtype=False)  # fairseq's softmax is in single precision


@pytest.fixture
def pair():
    ours = randomise(CrossAttention(**SIZES)).double().eval()
    stock = MultiheadAttention(**SIZES).double().eval()
    stock.load_state_dict(ours.state_dict())
    return ours, stock


@pytest.fixture
def source():
    """(S, N, C') and (N, S), true at padding."""
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    return torch.randn(5, 2, 6, dtype=torch.double), padding


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("padded", [True, False])
def test_equals_fairseq(pair, source, steps, padded):
    key, padding = source
    query = torch.randn(steps, 2, 8, dtype=torch.double)
    outputs = [m(query, key, key, padding if padded else None, need_weights=False) for m in pair]
    assert_close(outputs[0][0], outputs[1][0], **CLOSE)
    assert outputs[0][1] is None


@pytest.mark.parametrize("per_head", [True, False])
def test_weights_equal_fairseq(pair, source, per_head):
    key, padding = source
    query = torch.randn(4, 2, 8, dtype=torch.double)
    pair[1]._set_skip_embed_dim_check()  # its long path, the one that knows heads
    ours, stock = (m(query, key, key, padding, need_head_weights=per_head) for m in pair)
    assert_close(ours, stock, **CLOSE)


@pytest.mark.parametrize("padded", [True, False])
def test_beam_search_equals_fairseq(pair, source, padded):
    """Three hypotheses a sentence, step after step; then the first sentence is finished."""
    beam = 3
    key, padding = (x.repeat_interleave(beam, dim=1 - i) for i, x in enumerate(source))
    results = []
    for module in pair:
        module.set_beam_size(beam)
        state, outputs = {}, []
        generator = torch.Generator().manual_seed(1)
        for step in range(4):
            hypotheses = 2 * beam if step < 2 else beam
            query = torch.randn(1, hypotheses, 8, dtype=torch.double, generator=generator)
            outputs += module(query, key, key, padding if padded else None, state, static_kv=True)
            order = torch.arange(hypotheses).flip(0) if step != 1 else torch.arange(beam, 2 * beam)
            if step != 1:  # a search moves hypotheses within their sentence only
                order = order.view(-1, beam).flip(0).reshape(-1)
            module.reorder_incremental_state(state, order)
            if step == 1:
                key, padding = key[:, beam:], padding[beam:]
        results.append(outputs)
        key, padding = (x.repeat_interleave(beam, dim=1 - i) for i, x in enumerate(source))
    assert_close(results[0], results[1], **CLOSE)


def test_gradients_equal_fairseq(pair, source):
    key, padding = source
    query = torch.randn(4, 2, 8, dtype=torch.double)
    for module in pair:
        module(query, key, key, padding, need_weights=False)[0].square().sum().backward()
    for (name, p), q in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-9, msg=name)


def test_a_hook_on_out_proj_sees_all_heads(pair, source):
    module, seen = pair[0], []
    module.out_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    for steps in (1, 4):
        module(torch.randn(steps, 2, 8, dtype=torch.double), source[0], source[0])
    assert seen == [(1, 2, 8), (4, 2, 8)]
