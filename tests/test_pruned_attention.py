"""What is left of an attention module that lost heads, and what stands where all are gone."""

import copy

import pytest
import torch
from conftest import randomise
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from head_models import KINDS, PAD, TRANSLATING, WORDS, model_of, net_input, validation
from test_head_removal import CLOSE, without
from torch import nn
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import attentions, list_heads, masked, parse_heads
from lite_transformer_plugin.heads.names import heads_left
from lite_transformer_plugin.heads.removal import remove_heads_
from lite_transformer_plugin.modules.attention import SelfAttention
from lite_transformer_plugin.modules.pruned_attention import HeadlessAttention, PrunedSelfAttention


def test_remaining_heads_keep_their_order():
    model = model_of("transformer")
    before = copy.deepcopy(model.encoder.layers[0].self_attn)
    remove_heads_(model, parse_heads("E:1:1,3"))
    module = model.encoder.layers[0].self_attn
    size = before.head_dim
    kept = [*range(size, 2 * size), *range(3 * size, 4 * size)]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert torch.equal(getattr(module, name).weight, getattr(before, name).weight[kept])
        assert torch.equal(getattr(module, name).bias, getattr(before, name).bias[kept])
    assert torch.equal(module.out_proj.weight, before.out_proj.weight[:, kept])
    assert torch.equal(module.out_proj.bias, before.out_proj.bias)
    assert heads_left(module) == module.heads_left == (2, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_tell_the_new_sizes(kind):
    model = model_of(kind)
    model.requires_grad_(False)
    before = {a.place: a.module for a in attentions(copy.deepcopy(model))}
    remove_heads_(model, list_heads(model)[1:])
    for attention in attentions(model):
        module, old = attention.module, before[attention.place]
        assert module.num_heads == len(attention.heads) == int(attention.heads == (1,))
        assert module.head_dim == old.head_dim
        assert not module.training and not any(p.requires_grad for p in module.parameters())
        if attention.heads:
            assert module.scaling == old.scaling
            assert module.embed_dim == module.num_heads * module.head_dim
            linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
            shapes = [(m.out_features, m.in_features) for m in linears]
            assert shapes == [tuple(m.weight.shape) for m in linears] and len(shapes) == 4


def test_the_global_branch_tells_its_size_to_fairseq():
    model = model_of("lite_transformer")
    branches = [layer.self_attn for layer in model.encoder.layers]
    assert [branch.num_heads for branch in branches] == [2, 2]
    remove_heads_(model, parse_heads("E:1:2 E:2:1,2"))
    assert [branch.num_heads for branch in branches] == [1, 0]
    assert {branch.head_dim for branch in branches} == {4}
    assert isinstance(branches[0].attention, SelfAttention)


def test_stock_self_attention_becomes_the_fast_one():
    model = model_of("transformer", "--attention-dropout=0.3")
    remove_heads_(model, parse_heads("E:1:2 D:1:1 A:1:1"))
    assert type(model.encoder.layers[0].self_attn) is PrunedSelfAttention
    assert model.encoder.layers[0].self_attn.dropout_module.p == 0.3
    assert type(model.decoder.layers[0].self_attn) is PrunedSelfAttention
    assert type(model.decoder.layers[0].encoder_attn).__module__.startswith("fairseq.")


def test_attention_with_more_to_it_stays_what_it_is():
    """A key of zeros, which fairseq's modules can have."""
    model = model_of("transformer")
    layer = model.encoder.layers[0]
    layer.self_attn = type(layer.self_attn)(16, 4, self_attention=True, add_zero_attn=True)
    randomise(layer.self_attn).eval()
    heads = parse_heads("E:1:1,3")
    pruned = without(model, heads)
    assert type(pruned.encoder.layers[0].self_attn) is type(layer.self_attn)
    with masked(model, heads):
        assert_close(validation(pruned, "transformer"), validation(model, "transformer"), **CLOSE)


# --- no heads -------------------------------------------------------------------------------------


def test_no_heads_leave_the_bias():
    model = model_of("transformer")
    bias = model.decoder.layers[1].encoder_attn.out_proj.bias.clone()
    remove_heads_(model, parse_heads("A:2:1-3"))
    module = model.decoder.layers[1].encoder_attn
    assert isinstance(module, HeadlessAttention) and module.heads_left == ()
    assert list(module.state_dict()) == ["out_proj.bias"]
    query, key = torch.randn(4, 2, 12), torch.randn(3, 2, 16)
    padding = torch.tensor([[False, True, True], [False, False, True]])
    output, weights = module(query, key, key, key_padding_mask=padding, static_kv=True)
    assert torch.equal(output, bias.expand(4, 2, 12))
    rows = torch.tensor([[1, 0, 0], [0.5, 0.5, 0]])
    assert torch.equal(weights, rows[:, None].expand(2, 4, 3))
    per_head = module(query, key, key, padding, need_head_weights=True)[1]
    assert torch.equal(per_head, weights[None])
    assert module(query, key, key, need_weights=False)[1] is None


def test_no_heads_answer_what_fairseq_asks():
    model = model_of("lite_transformer")
    remove_heads_(model, list_heads(model))
    module = model.decoder.layers[0].encoder_attn
    state: dict = {}
    module.set_beam_size(4)
    assert module._get_input_buffer(state) == {}
    assert module._set_input_buffer(state, {"prev_key": None}) == {}
    assert module.reorder_incremental_state(state, torch.tensor([1, 0])) == {}


@pytest.mark.parametrize("kind", TRANSLATING)
def test_alignments_without_cross_attention_prefer_no_word(kind):
    """The last decoder layer's cross-attention is what generation returns as attention."""
    model = model_of(kind, "--decoder-layers", "2")
    remove_heads_(model, [head for head in list_heads(model, "A") if head.layer == 2])
    words = build.dictionary(WORDS)
    # words are drawn, almost all alike, so that sentences end at different steps
    model.decoder.output_projection.weight.data *= 0.1
    drawn = Sampling(words)
    generator = SequenceGenerator([model], words, 3, max_len_b=99, search_strategy=drawn)
    torch.manual_seed(1)
    inputs = {name: x for name, x in net_input(kind).items() if name != "prev_output_tokens"}
    found = generator.generate([model], {"net_input": inputs})
    lengths = [max(len(h["tokens"]) for h in hypotheses) for hypotheses in found]
    assert len(set(lengths)) == len(lengths)
    for source, hypotheses in zip(inputs["src_tokens"], found, strict=True):
        seen = torch.ones_like(source) if kind == "bart" else source.ne(PAD)
        for hypothesis in hypotheses:
            attention = hypothesis["attention"]  # S x T
            assert_close(attention, (seen / seen.sum())[:, None].expand_as(attention))
