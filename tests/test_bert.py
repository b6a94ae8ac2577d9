"""`bert`: segments of pairs, epsilon, lengths; its heads are named, masked and removed."""

import pytest
import torch
from conftest import randomise
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import list_heads, masked, parse_heads, remove_heads_
from lite_transformer_plugin.models.bert import segments_of

FLAGS = (
    "--encoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--encoder-attention-heads 4 --max-positions 12 --dropout 0 --attention-dropout 0"
).split()
PAIR = torch.tensor([[0, 5, 6, 2, 7, 8, 2], [0, 9, 2, 5, 2, 1, 1]])
SEGMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])


def make(*flags: str):
    return randomise(build.architecture("bert", 24, [*FLAGS, *flags])).eval()


def features(model, tokens):
    with torch.no_grad():
        return model(tokens, features_only=True)[0]


def test_a_separator_ends_its_sentence():
    assert_close(segments_of(PAIR, 2, 2), SEGMENTS)
    single = torch.tensor([[0, 5, 6, 2]])
    assert_close(segments_of(single, 2, 2), torch.zeros_like(single))
    assert_close(segments_of(PAIR, 2, 1), torch.zeros_like(PAIR))


def test_segments_reach_the_model_by_the_separators_alone():
    model = make()
    table = model.encoder.sentence_encoder.embed_segments.weight
    words = model.encoder.sentence_encoder.embed_tokens(PAIR)
    given = model.encoder.extract_features(PAIR, token_embeddings=words)[0]
    assert_close(features(model, PAIR), given)
    with torch.no_grad():
        table[1, 0] += 1
    changed = features(model, PAIR)
    assert not torch.allclose(changed, given, atol=1e-2)
    assert_close(features(model, PAIR[:, :3]), features(make(), PAIR[:, :3]))


def test_padding_changes_nothing():
    model = make()
    alone = features(model, PAIR[1:, :5])
    assert_close(features(model, PAIR)[1:, :5], alone, atol=1e-6, rtol=1e-6)


def test_every_layer_norm_has_the_epsilon():
    for flags, eps in (((), 1e-12), (("--layer-norm-eps", "0.001"), 1e-3)):
        norms = [m.eps for m in make(*flags).modules() if isinstance(m, torch.nn.LayerNorm)]
        assert norms == [eps] * 6  # two a layer, the embeddings', the masked words'


def test_one_segment_and_its_epsilon_are_roberta():
    tokens = PAIR[:, :4]
    ours = make("--segments", "1", "--layer-norm-eps", "1e-5")
    stock = build.architecture("roberta", 24, FLAGS).eval()
    state = ours.state_dict()
    state.pop("encoder.sentence_encoder.embed_segments.weight").zero_()
    stock.load_state_dict(state)
    assert_close(features(ours, tokens), features(stock, tokens))


def test_a_text_longer_than_the_positions_is_refused():
    model = make()
    assert features(model, torch.full((1, 12), 5)).size(1) == 12
    with pytest.raises(ValueError, match="^13 tokens are more than the 12 positions"):
        model(torch.full((1, 13), 5))


def test_heads_are_named_masked_and_removed():
    model = make()
    gone = parse_heads("E:1:1-4 E:2:2")
    assert len(list_heads(model)) == 8
    with masked(model, gone):
        expected = features(model, PAIR)
    assert not torch.allclose(expected, features(model, PAIR), atol=1e-2)
    remove_heads_(model, gone)
    assert len(list_heads(model)) == 3
    assert_close(features(model, PAIR), expected, atol=1e-5, rtol=1e-5)
