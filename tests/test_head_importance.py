"""Importance is the mean |derivative| of the loss by head gates, whatever the batching."""

import json
import socket
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import randomise
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
from fairseq.distributed import ModuleProxyWrapper
from fairseq.distributed.utils import get_global_group
from fairseq.utils import convert_padding_direction
from test_head_names import WORDS, make
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import Head, attentions, gated, list_heads, masked, parse_heads
from lite_transformer_plugin.heads.importance import (
    UNITS,
    Importance,
    ImportanceMeter,
    measure,
    read_rows,
    rows,
    sum_units,
)
from lite_transformer_plugin.heads.removal import remove_heads_

PAD, EOS, MASK = 1, 2, 3
ONE_LAYER = ["--encoder-layers", "1", "--decoder-layers", "1"]
DROPOUT = [f"--{name}dropout=0.4" for name in ("", "attention-", "activation-")]
TASK = build.task_of(WORDS, WORDS)
TASK.label_dictionary = TASK.target_dictionary
CLASSIFIER = SimpleNamespace(
    classification_head_name="label",
    regression_target=False,
    report_mcc=False,
    report_acc_and_f1=False,
    report_pearson_and_spearman=False,
)
SMOOTHED = LabelSmoothedCrossEntropyCriterion(TASK, sentence_avg=False, label_smoothing=0.1)
CRITERIA = {
    "lite_transformer": SMOOTHED,
    "transformer": SMOOTHED,
    "bart": SMOOTHED,
    "transformer_lm": CrossEntropyCriterion(TASK, sentence_avg=False),
    "adaptive": AdaptiveLoss(TASK, sentence_avg=False),
    "roberta": MaskedLmLoss(SimpleNamespace(tpu=False), TASK),
    "classifier": SentencePredictionCriterion(CLASSIFIER, TASK),
}
KINDS = list(CRITERIA)
LANGUAGE_MODELS = ("transformer_lm", "adaptive")
RELU = ["--activation-fn", "relu"]  # fairseq's GELU is in float32
FLAGS = {
    "bart": RELU,
    "transformer": ONE_LAYER,
    "transformer_lm": ONE_LAYER[2:],
    "adaptive": [*ONE_LAYER[2:], "--adaptive-softmax-cutoff", "8,16"],
    "roberta": [*ONE_LAYER[:2], *RELU],
    "classifier": [*ONE_LAYER[:2], *RELU],
}
NAMES = {"adaptive": "transformer_lm", "classifier": "roberta"}


def model_of(kind: str, *flags: str, dtype: torch.dtype = torch.double) -> nn.Module:
    torch.manual_seed(0)
    extra = [] if kind in LANGUAGE_MODELS and "--checkpoint-activations" in flags else DROPOUT
    model = make(NAMES.get(kind, kind), *FLAGS.get(kind, []), *extra, *flags)
    if kind == "classifier":
        model.register_classification_head("label", num_classes=3)
    return randomise(model).to(dtype).train()  # the dropout has to be switched off


def sentence(length: int, seed: int) -> Tensor:
    words = torch.randint(4, WORDS, (length,), generator=torch.Generator().manual_seed(seed))
    return torch.cat([words, torch.tensor([EOS])])


PAIRS = [(sentence(n, n), sentence(m, 10 + m)) for n, m in ((2, 3), (5, 1), (1, 4), (3, 2), (4, 6))]


def pad(sentences: list[Tensor], left: bool) -> Tensor:
    batch = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
    return convert_padding_direction(batch, PAD, right_to_left=True) if left else batch


def batch_of(kind: str, pairs: list, left: str = "") -> dict:
    """fairseq's batch; sides named in `left` (source, target) are padded on the left."""
    source = pad([a for a, _ in pairs], "source" in left)
    target = pad([b for _, b in pairs], "target" in left)
    inputs = {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}
    if kind in LANGUAGE_MODELS:
        inputs["src_tokens"] = pad([b.roll(1) for _, b in pairs], False)
    elif kind == "roberta":
        masks = torch.arange(source.size(1)).expand_as(source) % 2 == 1
        inputs["src_tokens"] = source.masked_fill(masks & source.ne(PAD), MASK)
        target = source.masked_fill(~masks, PAD)
    elif kind == "classifier":
        target = torch.stack([a[0] % 3 for a, _ in pairs])
    else:
        moved = [b.roll(1) for _, b in pairs]  # fairseq starts a sentence with its end
        inputs["prev_output_tokens"] = pad(moved, "target" in left)
    words = int(target.ne(PAD).sum())
    return {"net_input": inputs, "target": target, "ntokens": words, "nsentences": len(pairs)}


def batches_of(kind: str, size: int, left: str = "") -> list[dict]:
    cuts = range(0, len(PAIRS), size)
    return [batch_of(kind, PAIRS[start : start + size], left) for start in cuts]


def importance_of(model, kind: str, samples=None, unit: str = "sentence", **how) -> dict:
    samples = batches_of(kind, 3) if samples is None else samples
    how = {"normalise": False} | how
    return measure(model, CRITERIA[kind], samples, unit, **how).scores


def assert_same(actual: dict, expected: dict, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    assert list(actual) == list(expected)
    values = [torch.tensor(list(x.values()), dtype=torch.double) for x in (actual, expected)]
    assert_close(*values, rtol=rtol, atol=atol)


# --- the definition -------------------------------------------------------------------------------


@pytest.fixture
def exact(monkeypatch):
    """fairseq takes softmax in float32, too coarse for a difference of losses."""

    def in_double(stock, x, dim, dtype=None):
        return stock(x, dim, dtype=None if x.dtype == torch.double else dtype)

    for name in ("softmax", "log_softmax"):
        stock = getattr(nn.functional, name)
        monkeypatch.setattr(nn.functional, name, partial(in_double, stock))


def derivative(model, kind: str, sample: dict, place, gate: Tensor, at: tuple) -> float:
    """Of the loss by one entry of a gate of ones: the central difference."""
    losses = []
    for step in (1e-5, -1e-5):
        changed = gate.clone()
        changed[at] += step
        with torch.no_grad(), gated(model, {place: changed}):
            losses.append(CRITERIA[kind](model, sample)[0].sum().item())
    return (losses[0] - losses[1]) / 2e-5


def tokens_of(sample: dict, part: str) -> Tensor:
    inputs = sample["net_input"]
    return inputs["src_tokens" if part == "E" else "prev_output_tokens"]


def by_sentence(model, kind: str, pairs: list) -> dict[Head, float]:
    """I_h word for word: a gate per head, one sentence after the other, without padding."""
    scores = {}
    for attention in attentions(model.eval()):
        gate = torch.ones(len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slopes = [
                derivative(model, kind, batch_of(kind, [pair]), attention.place, gate, (i,))
                for pair in pairs
            ]
            scores[head] = sum(map(abs, slopes)) / len(pairs)
    return scores


def by_token(model, kind: str, sample: dict) -> dict[Head, float]:
    scores = {}
    for attention in attentions(model.eval()):
        real = tokens_of(sample, attention.part).ne(PAD).t()
        gate = torch.ones(*real.shape, len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slopes = [
                derivative(model, kind, sample, attention.place, gate, (*at, i))
                for at in real.nonzero().tolist()
            ]
            scores[head] = sum(map(abs, slopes)) / len(slopes)
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_per_sentence_it_is_the_papers_equation(kind, exact):
    model = model_of(kind)
    found = importance_of(model, kind)
    expected = by_sentence(model, kind, PAIRS)
    assert min(expected.values()) > 1e-3
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer"])
def test_per_token_it_is_the_mean_over_the_queries(kind, exact):
    model, sample = model_of(kind), batch_of(kind, PAIRS[:2])
    assert sample["net_input"]["src_tokens"].eq(PAD).any()
    found = importance_of(model, kind, [sample], "token")
    assert_same(found, by_token(model, kind, sample))


def test_per_batch_signs_cancel(exact):
    model = model_of("transformer")
    [whole] = batches_of("transformer", 5)
    found = importance_of(model, "transformer", [whole], "batch")
    for attention in attentions(model.eval()):
        gate = torch.ones(len(attention.heads), dtype=torch.double)
        for i, head in enumerate(attention.names()):
            slope = derivative(model, "transformer", whole, attention.place, gate, (i,))
            assert found[head] == pytest.approx(abs(slope), rel=1e-6, abs=1e-6)
    single = batches_of("transformer", 1)
    alone = importance_of(model, "transformer", single, "batch")
    assert_same(alone, importance_of(model, "transformer", single, "sentence"))
    shares = [found[head] / (5 * alone[head]) for head in found]
    assert max(shares) < 1 + 1e-6 and min(shares) < 0.5


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["sentence", "token"])
@pytest.mark.parametrize("kind", KINDS)
def test_batching_and_padding_do_not_count(kind, unit):
    model = model_of(kind)
    expected = importance_of(model, kind, batches_of(kind, 1), unit)
    lefts = {"lite_transformer": ("", "source", "source target"), "transformer": ("", "source")}
    for left in lefts.get(kind, ("",)):
        for size in (2, 3, 5):
            found = importance_of(model, kind, batches_of(kind, size, left), unit)
            assert_same(found, expected)


def test_counts():
    model = model_of("transformer")
    samples = [{}, *batches_of("transformer", 3), None]
    source, target = (sum(len(pair[i]) for pair in PAIRS) for i in (0, 1))
    expected = {
        "sentence": {"E": 5, "A": 5, "D": 5},
        "token": {"E": source, "A": target, "D": target},
        "batch": {"E": 2, "A": 2, "D": 2},
    }
    for unit in UNITS:
        result = measure(model, SMOOTHED, samples, unit)
        assert (result.unit, result.count, result.normalised) == (unit, expected[unit], True)


def test_padding_with_a_gradient_does_not_count():
    """As in a model that lets padding leak into its loss."""
    gradient = torch.tensor([[[1.0], [9.0]], [[-3.0], [9.0]], [[float("nan")], [9.0]]])  # T x B x H
    real = torch.tensor([[True, False], [True, False], [False, False]])
    expected = {"token": [4.0, 2.0], "sentence": [2.0, 1.0], "batch": [2.0, 1.0]}
    assert {unit: sum_units(gradient, real, unit).tolist() for unit in UNITS} == expected


def test_units_differ():
    model = model_of("transformer")
    results = [importance_of(model, "transformer", unit=unit, normalise=True) for unit in UNITS]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert max(abs(results[one][head] - results[other][head]) for head in results[0]) > 1e-2


# --- normalisation --------------------------------------------------------------------------------


def test_each_attention_module_has_norm_one():
    model = model_of("lite_transformer")
    with masked(model, parse_heads("E:2:1,2")):
        plain = importance_of(model, "lite_transformer")
        scaled = importance_of(model, "lite_transformer", normalise=True)
    for attention in attentions(model):
        before = torch.tensor([plain[head] for head in attention.names()], dtype=torch.double)
        after = torch.tensor([scaled[head] for head in attention.names()], dtype=torch.double)
        if attention.place == ("E", 2):
            assert not before.any() and not after.any()
        else:
            assert_close(after, before / before.norm())


# --- masked and removed heads ---------------------------------------------------------------------

LOST = {
    "lite_transformer": "E:1:2 A:1:1,3 D:1:1,2",
    "transformer": "E:1:1,4 A:1:1-3 D:1:2",
    "transformer_lm": "D:1:1,3",
    "roberta": "E:1:2-4",
}


@pytest.mark.parametrize("kind", LOST)
def test_masked_heads_score_zero_and_removed_ones_nothing(kind):
    model, lost = model_of(kind), parse_heads(LOST[kind])
    whole = importance_of(model, kind)
    with masked(model, lost):
        found = importance_of(model, kind)
    kept = {head: score for head, score in found.items() if head not in lost}
    assert list(found) == list(whole) and all(found[head] == 0 for head in lost)
    assert max(abs(kept[head] - whole[head]) for head in kept) > 1e-3
    assert_same(importance_of(model, kind), whole)  # the mask is gone

    remove_heads_(model, lost)
    assert_same(importance_of(model, kind), kept)


def test_an_encoder_that_the_loss_does_not_see():
    arch = "no cross-attention"
    model = randomise(make(arch)).double()
    scores = measure(model, SMOOTHED, batches_of("transformer", 3)).scores
    assert all((score == 0) == (head.part == "E") for head, score in scores.items())


# --- the model is left alone ----------------------------------------------------------------------


def traces(*roots: nn.Module) -> list:
    modules = [module for root in roots for module in root.modules()]
    hooks = [[len(x) for name, x in vars(m).items() if "_hooks" in name] for m in modules]
    weights = [(p.requires_grad, p.grad) for root in roots for p in root.parameters()]
    return [hooks, [sorted(vars(m)) for m in modules], [m.training for m in modules], weights]


class Failing(LabelSmoothedCrossEntropyCriterion):
    def forward(self, model, sample, reduce=True):
        super().forward(model, sample, reduce)
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer"])
def test_the_model_is_left_as_it_was(kind):
    model = model_of(kind)
    model.decoder.layers[0].eval()
    model.encoder.layers[0].fc1.weight.requires_grad_(False)
    criterion = Failing(TASK, sentence_avg=False, label_smoothing=0.1).train()
    before = traces(model, criterion)
    importance_of(model, kind)
    assert traces(model, criterion) == before
    with pytest.raises(KeyboardInterrupt):
        measure(model, criterion, batches_of(kind, 3))
    assert traces(model, criterion) == before


def test_it_works_in_validation_and_around_a_training_step():
    model = model_of("transformer")
    expected = importance_of(model, "transformer")
    meter = ImportanceMeter(model, SMOOTHED)
    with torch.no_grad():
        for sample in batches_of("transformer", 2):
            meter.update(sample)
    assert_same(meter.result(normalise=False).scores, expected)
    sample = batches_of("transformer", 5)[0]
    SMOOTHED(model.eval(), sample)[0].backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert_same(importance_of(model, "transformer"), expected)
    left = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(map(torch.equal, left, gradients)) and left


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "transformer_lm"])
def test_checkpointed_activations(kind):
    expected = importance_of(model_of(kind), kind)
    model = model_of(kind, "--checkpoint-activations")
    assert any(hasattr(module, "precheckpoint_forward") for module in model.modules())
    assert_same(importance_of(model, kind), expected)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


class Wrapper(nn.Module):
    """As DistributedDataParallel; its forward would synchronise gradients."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_the_model_of_data_parallel_training():
    model = model_of("transformer")
    wrapped = ModuleProxyWrapper(Wrapper(model))
    assert_same(importance_of(wrapped, "transformer"), importance_of(model, "transformer"))


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "transformer_lm", "roberta"])
@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16, torch.half])
def test_half_precision(kind, dtype):
    tolerance = {torch.float: 1e-5, torch.half: 2e-2, torch.bfloat16: 0.15}[dtype]
    for unit in UNITS:
        expected = importance_of(model_of(kind), kind, unit=unit, normalise=True)
        model = model_of(kind, dtype=dtype)
        assert_same(
            importance_of(model, kind, unit=unit, normalise=True), expected, tolerance, tolerance
        )


class Scaled(LabelSmoothedCrossEntropyCriterion):
    factor = 1.0

    def forward(self, model, sample, reduce=True):
        loss, *rest = super().forward(model, sample, reduce)
        return loss * self.factor, *rest


@pytest.mark.parametrize("factor", [1e-5, 1.0, 1e4])
def test_float16_gradients_neither_vanish_nor_overflow(factor):
    expected = importance_of(model_of("transformer"), "transformer")
    criterion = Scaled(TASK, sentence_avg=False, label_smoothing=0.1)
    criterion.factor = factor
    model = model_of("transformer", dtype=torch.half)
    found = measure(model, criterion, batches_of("transformer", 3), normalise=False).scores
    assert_same({head: score / factor for head, score in found.items()}, expected, 0.05)


@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_a_broken_checkpoint(dtype):
    model = model_of("transformer", dtype=dtype)
    model.decoder.layers[0].fc1.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        importance_of(model, "transformer")


# --- several processes ----------------------------------------------------------------------------

SHARES = {"even": (slice(0, None, 2), slice(1, None, 2)), "uneven": (slice(0, None), slice(0, 0))}


def figures_of(rank: int, address: str) -> dict:
    how = dict(rank=rank, world_size=2, timeout=timedelta(seconds=100))
    torch.distributed.init_process_group("gloo", address, **how)
    results, model = {}, model_of("lite_transformer")
    for unit in UNITS:
        for name, shares in SHARES.items():
            samples = batches_of("lite_transformer", 2)[shares[rank]]
            results[unit, name] = measure(model, SMOOTHED, samples, unit, normalise=False)
    return results


def other_process(_, address: str, file: Path) -> None:
    torch.set_num_threads(1)
    results = figures_of(1, address)
    torch.save({key: (rows(result), result.count) for key, result in results.items()}, file)


def test_two_processes_get_the_figures_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    file = tmp_path / "other.pt"
    other = torch.multiprocessing.spawn(other_process, (address, file), nprocs=1, join=False)
    try:
        results = figures_of(0, address)
        other.join()
    finally:
        torch.distributed.destroy_process_group()
        vars(get_global_group).pop("_global_group", None)
    theirs, model = torch.load(file), model_of("lite_transformer")
    for (unit, name), ours in results.items():
        alone = measure(model, SMOOTHED, batches_of("lite_transformer", 2), unit, normalise=False)
        assert ours.count == alone.count == theirs[unit, name][1]
        assert_same(ours.scores, alone.scores)
        assert_same(read_rows(theirs[unit, name][0], model), alone.scores)


# --- bad input ------------------------------------------------------------------------------------


def test_bad_input_is_one_line():
    model = model_of("transformer")
    sample = batch_of("transformer", PAIRS)
    speech = {"net_input": {"src_tokens": torch.zeros(2, 3, 4)}}
    cases = [
        ((model, SMOOTHED, [sample], "word"), "no importance per 'word': choose sentence, token"),
        ((model, SMOOTHED, [None, {}]), "at least one batch"),
        ((make("lstm"), SMOOTHED, [sample]), "LSTMModel has no attention heads"),
        ((model, SMOOTHED, [speech]), "batches of text, with src_tokens as a matrix"),
        ((model, SMOOTHED, [{"id": torch.zeros(1)}]), "batches of text"),
    ]
    for args, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            measure(*args)
        assert "\n" not in str(error.value)


def test_a_model_that_changes_the_length_is_refused():
    model = model_of("transformer")

    def cut(module, args, kwargs):
        return (), kwargs | {"src_tokens": kwargs["src_tokens"][:, 1:]}

    model.register_forward_pre_hook(cut, with_kwargs=True)
    with pytest.raises(ValueError, match="does not fit"):
        importance_of(model, "transformer")


def test_a_model_that_lost_all_heads_has_nothing_to_measure():
    model = model_of("roberta")
    remove_heads_(model, list_heads(model))
    with pytest.raises(ValueError, match="RobertaModel has no attention heads"):
        importance_of(model, "roberta")


# --- rows of a file -------------------------------------------------------------------------------


def test_rows_come_back():
    model = model_of("transformer")
    result = measure(model, SMOOTHED, batches_of("transformer", 5))
    shuffled = Importance(dict(reversed(result.scores.items())), "sentence", {})
    written = json.loads(json.dumps(rows(shuffled)))
    assert [row["head"] for row in written] == [str(head) for head in list_heads(model)]
    assert written[0] == {"head": "E:1:1", "importance": result.scores[Head("E", 1, 1)]}
    assert read_rows(written, model) == result.scores


def test_rows_of_another_model_are_refused():
    model = model_of("transformer")
    good = [{"head": str(head), "importance": 0.5} for head in list_heads(model)]
    cases = [
        (good[1:], "importance file of another model: it has no figure for E:1:1"),
        ([*good, {"head": "E:2:1", "importance": 1}], "of another model: E:2:1: the model has"),
        ([{"head": "E:1", "importance": 1}], "is no importance: write"),
        ([{"head": "E:1:1-2", "importance": 1}], "is no importance: write"),
        ([{"head": "E:1:1"}], "is no importance: write"),
        (["E:1:1"], "is no importance: write"),
        ([{"head": 3, "importance": "much"}], "is no importance: write"),
        ([{"head": "E:1:1", "importance": float("nan")}], "importance of E:1:1 is nan"),
    ]
    for written, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            read_rows(written, model)
        assert "\n" not in str(error.value)
