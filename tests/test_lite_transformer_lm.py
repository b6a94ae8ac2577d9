"""The language model: steps equal the full pass, texts depend on no other, softmax is full."""

import pytest
import torch
import torch.nn.functional as F
from conftest import dictionary, parse_model, stub_task
from fairseq.models import build_model
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.sequence_generator import SequenceGenerator
from test_lite_transformer import PAD, collate, sentences
from torch.testing import assert_close

from lite_transformer_plugin import build as building
from lite_transformer_plugin.cost import Lengths, count

ARCH = ["--task", "language_modeling", "--arch", "lite_transformer_lm"]
ARCH += "--decoder-embed-dim 16 --decoder-layers 2 --decoder-kernel-size-list 3,5".split()
CUTOFFS = "--adaptive-input --adaptive-input-cutoff 8,16 --adaptive-softmax-cutoff 8,16".split()
CUTOFFS += "--adaptive-input-factor 2 --adaptive-softmax-factor 2".split()
VARIANTS = {
    "plain": [],
    "tied": ["--share-decoder-input-output-embed"],
    "adaptive": CUTOFFS,
    "adaptive, tied": [*CUTOFFS, "--tie-adaptive-weights", "--tie-adaptive-proj"],
    "narrow embeddings": ["--decoder-input-dim", "8", "--decoder-output-dim", "8"],
    "lightweight": ["--decoder-conv-type", "lightweight", "--no-decoder-glu"],
    "post-norm": ["--no-decoder-normalize-before"],
}
every_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def log_probabilities(model, tokens: torch.Tensor, **how) -> torch.Tensor:
    return model.get_normalized_probs(model(tokens, **how), log_probs=True)


@every_variant
@pytest.mark.parametrize("left", [True, False])
def test_a_padded_batch_equals_single_texts(build, options, left):
    model = build(*ARCH, *options).double()
    texts = sentences(5)
    batch = collate(texts, left)
    output = log_probabilities(model, batch)
    for row, text, scores in zip(batch, texts, output, strict=True):
        single = log_probabilities(model, text[None])[0]
        assert_close(scores[row.ne(PAD)], single, rtol=0, atol=1e-6)


@every_variant
def test_steps_equal_the_full_pass(build, options):
    model = build(*ARCH, *options).double()
    tokens = torch.randint(4, 24, (3, 9), generator=torch.Generator().manual_seed(1))
    full, state = log_probabilities(model, tokens), {}
    for t in range(9):
        step = log_probabilities(model, tokens[:, : t + 1], incremental_state=state)
        assert_close(step[:, 0], full[:, t], rtol=0, atol=1e-6)


@every_variant
def test_what_follows_is_not_seen(build, options):
    model = build(*ARCH, *options).double()
    tokens = torch.randint(4, 24, (2, 9), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 5:] = 4
    assert_close(log_probabilities(model, tokens)[:, :5], log_probabilities(model, other)[:, :5])


@every_variant
def test_continuing_a_text_does_not_depend_on_the_batch(build, options):
    model = build(*ARCH, *options).double()
    generator = SequenceGenerator([model], dictionary(), beam_size=3, max_len_b=15)
    texts = [torch.randint(4, 24, (5,)) for _ in range(6)]

    def continued(rows):
        tokens = torch.stack(rows)
        net_input = {"src_tokens": tokens, "src_lengths": torch.full((len(rows),), 5)}
        found = generator.generate([model], {"net_input": net_input}, prefix_tokens=tokens)
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    assert continued(texts) == [continued([text])[0] for text in texts]


def test_an_adaptive_softmax_is_a_full_one(build):
    """Scores of frequent words and bands, and below every band those of its words: by hand."""
    model = build(*ARCH, *CUTOFFS, "--tie-adaptive-weights", "--tie-adaptive-proj").double()
    tokens = collate(sentences(3))
    found = log_probabilities(model, tokens)
    assert_close(found.exp().sum(-1), torch.ones_like(found[..., 0]))
    features = model.decoder.extract_features(tokens, None)[0]
    bands = [
        (table.weight, linear.weight) for table, linear in model.decoder.embed_tokens.embeddings
    ]
    classes = model.decoder.adaptive_softmax.head.class_proj.weight
    head = features @ torch.cat([bands[0][0], classes]).t()  # as wide as the model: as they are
    head = F.log_softmax(head, dim=-1)
    expected = [head[..., :8]]
    for i, (words, projection) in enumerate(bands[1:]):
        inside = F.log_softmax(features @ projection @ words.t(), dim=-1)
        expected.append(head[..., 8 + i, None] + inside)
    assert_close(found, torch.cat(expected, dim=-1), rtol=0, atol=1e-6)


def test_half_precision_stays_finite(build):
    model = build(*ARCH).bfloat16()
    output = log_probabilities(model, collate(sentences(5)))
    assert torch.isfinite(output).all()


def test_kernel_sizes():
    args = ["--decoder-embed-dim", "16", "--decoder-layers", "13"]
    model = building.architecture("lite_transformer_lm", 24, args)
    sizes = [layer.self_attn.convolution.convolution.kernel_size for layer in model.decoder.layers]
    assert sizes == [15, 15] + 4 * [31] + 7 * [63]


def test_published_mult_adds():
    """3.9G at 100 tokens for both, embeddings and output aside."""
    words = 60_010
    for name, expected in (
        ("lite_transformer_lm_wiki103", 3_839_360_000),
        ("transformer_lm_wiki103_512", 3_897_753_600),
    ):
        model = building.architecture(name, words, weights=False)
        assert count(model, Lengths(target=100)).mult_adds == expected
        assert isinstance(model, TransformerLanguageModel)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--adaptive-softmax-cutoff 8,99", "goes beyond the 24 entries of the dictionary"),
        ("--adaptive-input --adaptive-input-cutoff 99", "goes beyond the 24 entries"),
        ("--adaptive-softmax-cutoff 16,8", "must grow"),
        ("--adaptive-input", "needs --adaptive-input-cutoff, as 20000,60000"),
        ("--tie-adaptive-weights", "needs --adaptive-input and --adaptive-softmax-cutoff"),
        ("--tie-adaptive-proj", "needs --tie-adaptive-weights"),
        (
            "--adaptive-input --adaptive-input-cutoff 8 --adaptive-softmax-cutoff 9 "
            "--tie-adaptive-weights",
            "--adaptive-input-cutoff (8) and --adaptive-softmax-cutoff (9) must be equal",
        ),
        (
            "--adaptive-input --adaptive-input-cutoff 8 --adaptive-softmax-cutoff 8 "
            "--adaptive-input-factor 2 --tie-adaptive-weights",
            "--adaptive-input-factor (2.0) and --adaptive-softmax-factor (4.0) must be equal",
        ),
        (
            "--share-decoder-input-output-embed --decoder-input-dim 8",
            "--decoder-input-dim (8) must equal --decoder-output-dim (16)",
        ),
        (
            "--share-decoder-input-output-embed --adaptive-input --adaptive-input-cutoff 8",
            "--tie-adaptive-weights does",
        ),
        ("--decoder-embed-dim 15", "--decoder-embed-dim (15) must be even"),
        ("--decoder-kernel-size-list 3", "has 1 sizes (3) for 2 layers"),
        ("--decoder-attention-heads 3", "3 attention heads do not divide the 8 channels"),
    ],
)
def test_settings_that_do_not_fit(flags, message):
    with pytest.raises(ValueError) as error:
        build_model(parse_model(*ARCH, *flags.split()), stub_task(dictionary()))
    assert message in str(error.value) and "\n" not in str(error.value)
