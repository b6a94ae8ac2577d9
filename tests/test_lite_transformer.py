"""The model: decoding equals the full pass, batches equal single sentences, scripts, learns."""

import copy

import pytest
import torch
from conftest import TINY, dictionary, parse_model, stub_task
from fairseq.checkpoint_utils import prune_state_dict
from fairseq.models import build_model
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import convert_padding_direction
from omegaconf import OmegaConf
from torch.testing import assert_close

from lite_transformer_plugin.modules.long_short_range_attention import LongShortRangeAttention

PAD, EOS = 1, 2
ARCH = ["--arch", "lite_transformer", *TINY]
VARIANTS = {
    "plain": [],
    "lightweight": [
        "--encoder-conv-type",
        "lightweight",
        "--decoder-conv-type",
        "lightweight",
        "--no-encoder-glu",
        "--no-decoder-glu",
    ],
    "pre-norm": ["--encoder-normalize-before", "--decoder-normalize-before"],
    "tied": ["--share-all-embeddings"],
    "learned positions": ["--encoder-learned-pos", "--decoder-learned-pos"],
    "uneven branches": ["--encoder-attention-dim", "12", "--decoder-conv-dim", "12"],
    "one encoder layer": ["--encoder-layers", "1"],
    "different widths": ["--decoder-embed-dim", "24"],
    "even kernels": ["--encoder-kernel-size-list", "4,6", "--decoder-kernel-size-list", "4,6"],
}


def sentences(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [
        torch.cat([torch.randint(4, 24, (n,), generator=generator), torch.tensor([EOS])])
        for n in lengths
    ]


def collate(rows: list[torch.Tensor], left: bool = False) -> torch.Tensor:
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return convert_padding_direction(batch, PAD, right_to_left=True) if left else batch


def shifted(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Targets moved right: fairseq starts a sentence with its end."""
    return [torch.cat([row[-1:], row[:-1]]) for row in rows]


def generator_for(model, beam: int = 4) -> SequenceGenerator:
    return SequenceGenerator([model], dictionary(), beam_size=beam, max_len_b=12)


def translate(generator, rows: list[torch.Tensor], left: bool = True) -> list[dict]:
    src = collate(rows, left)
    lengths = torch.tensor([len(row) for row in rows])
    sample = {"net_input": {"src_tokens": src, "src_lengths": lengths}}
    return [hypotheses[0] for hypotheses in generator(sample)]


def logits(model, source, target) -> torch.Tensor:
    lengths = source.ne(PAD).sum(1)
    return model(source, lengths, target)[0]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_padded_batch_equals_single_sentences(build, options, left):
    model = build(*ARCH, *options).double()
    rows, targets = sentences(5), shifted(sentences(5, seed=1))
    output = logits(model, collate(rows, left), collate(targets))
    for i, (row, target) in enumerate(zip(rows, targets, strict=True)):
        single = logits(model, row[None], target[None])
        assert_close(output[i : i + 1, : len(target)], single, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_incremental_decoding_equals_the_full_pass(build, options):
    model = build(*ARCH, *options).double()
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    encoded = model.encoder(source, source.ne(PAD).sum(1))
    full = model.decoder(target, encoder_out=encoded)[0]
    state, steps = {}, []
    for t in range(1, target.size(1) + 1):
        steps.append(model.decoder(target[:, :t], encoder_out=encoded, incremental_state=state)[0])
    # fairseq's cross-attention normalises in single precision when it decodes step by step
    real = target.ne(PAD)
    assert_close(torch.cat(steps, dim=1)[real], full[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_beam_search_does_not_depend_on_the_batch(build, options):
    generator = generator_for(build(*ARCH, *options).double())
    rows = sentences(32)
    together = translate(generator, rows)[:8]
    for row, expected in zip(rows[:8], together, strict=True):
        single = translate(generator, [row])[0]
        assert single["tokens"].tolist() == expected["tokens"].tolist()
        assert_close(single["score"], expected["score"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 16, None])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_preparing_for_inference_changes_no_result(build, options, batch_size):
    """What fairseq's commands do before they generate; the checkpoint's keys stay as well."""
    model = build(*ARCH, *options)
    fast = copy.deepcopy(model)
    cfg = {"dataset": {"batch_size": batch_size}, "generation": {"beam": 4}}
    fast.prepare_for_inference_(OmegaConf.create(cfg))
    attention = fast.decoder.layers[0].self_attn.attention
    assert attention.fused_weight.shape == (3 * attention.embed_dim, attention.embed_dim)
    column_by_column = attention.out_proj.weight.stride(0) == 1
    assert column_by_column == (batch_size == 1)
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    assert_close(logits(fast, source, target), logits(model, source, target))
    rows = sentences(6)
    for one, other in zip(
        translate(generator_for(model), rows), translate(generator_for(fast), rows), strict=True
    ):
        assert one["tokens"].tolist() == other["tokens"].tolist()
        assert_close(one["score"], other["score"])
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert model.decoder.layers[0].self_attn.attention.fused_weight is None


def test_retained_dropout_still_drops_taps(build):
    options = [*VARIANTS["lightweight"], "--weight-dropout", "0.5"]
    model = build(*ARCH, *options)
    model.make_generation_fast_(retain_dropout=True)
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    assert (logits(model, source, target) != logits(model, source, target)).any()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_scripted_equals_eager(build, options):
    model = build(*ARCH, *options)
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    expected = logits(model, source, target)
    assert_close(logits(torch.jit.script(model), source, target), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "lightweight"])
def test_scripted_beam_search_equals_eager(build, name):
    model = build(*ARCH, *VARIANTS[name])
    rows = sentences(6)
    expected = translate(generator_for(model), rows)
    prepared = copy.deepcopy(model)
    prepared.make_generation_fast_()
    scripted = torch.jit.script(generator_for(prepared))
    output = translate(scripted, rows)
    assert [h["tokens"].tolist() for h in output] == [h["tokens"].tolist() for h in expected]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(build, dtype):
    model = build(*ARCH).to(dtype)
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    source[0] = PAD  # a sentence of nothing but padding
    output = logits(model, source, target)[1:]
    assert output.isfinite().all()


def test_it_overfits_eight_pairs():
    torch.manual_seed(1)
    options = ["--encoder-embed-dim", "32", "--dropout", "0"]
    model = build_model(parse_model(*ARCH, *options), stub_task(dictionary()))
    rows, wanted = sentences(8), sentences(8, seed=1)
    source, target = collate(rows, left=True), collate(wanted)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(
            logits(model, source, collate(shifted(wanted))).flatten(0, 1),
            target.flatten(),
            ignore_index=PAD,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    # greedy: a wider beam of fairseq's stops once enough short, poor hypotheses have ended
    output = translate(generator_for(model.eval(), beam=1), rows)
    assert [h["tokens"].tolist() for h in output] == [row.tolist() for row in wanted]


def test_activation_checkpointing_gives_the_same_gradients(build):
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    gradients = []
    for options in ([], ["--checkpoint-activations"]):
        model = build(*ARCH, *options).train()
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        logits(model, source, target).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_adaptive_softmax_gives_a_distribution(build):
    model = build(*ARCH, "--adaptive-softmax-cutoff", "8,16")
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    output = model(source, source.ne(PAD).sum(1), target)
    total = model.get_normalized_probs(output, log_probs=False).sum(-1)
    assert_close(total, torch.ones_like(total))


def test_layer_drop_skips_layers_in_training_only(build):
    model = build(*ARCH, "--encoder-layerdrop", "1.0")
    assert len(list(model.encoder.layers)) == 2
    assert len(list(model.train().encoder.layers)) == 0


def test_kept_layers_keep_their_kernels(build):
    """fairseq renumbers the weights of kept layers; the kernel sizes must follow."""
    options = [*ARCH, "--encoder-layers", "4"]
    full = build(*options)
    kept = ["--encoder-layers-to-keep", "1,3", "--decoder-layers-to-keep", "0,1"]
    cfg = parse_model(*options, *kept)
    pruned = build_model(cfg, stub_task(dictionary()))
    pruned.load_state_dict(prune_state_dict(full.state_dict(), cfg))
    sizes = [
        [
            m.convolution.convolution.kernel_size
            for m in model.encoder.modules()
            if isinstance(m, LongShortRangeAttention)
        ]
        for model in (full, pruned)
    ]
    assert sizes == [[3, 7, 15, 31], [7, 31]]
    weight = "encoder.layers.{}.fc1.weight"
    assert_close(pruned.state_dict()[weight.format(1)], full.state_dict()[weight.format(3)])


def test_cross_attention_is_full_width(build):
    layer = build(*ARCH, "--decoder-self-attention-heads", "2").decoder.layers[0]
    assert isinstance(layer.encoder_attn, MultiheadAttention)
    assert (layer.encoder_attn.embed_dim, layer.encoder_attn.num_heads) == (16, 4)
    assert (layer.self_attn.attention.embed_dim, layer.self_attn.num_heads) == (8, 2)


def test_alignment_comes_from_cross_attention(build):
    model = build(*ARCH)
    source, target = collate(sentences(4), left=True), collate(shifted(sentences(4, seed=1)))
    _, extra = model(source, source.ne(PAD).sum(1), target, alignment_layer=0)
    attention = extra["attn"][0]
    assert attention.shape == (4, target.size(1), source.size(1))
    assert_close(attention.sum(-1), torch.ones(attention.shape[:2]))
