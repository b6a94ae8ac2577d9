"""`--criterion head_mask`: the stock loss, importance in validation, gates that learn."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from fairseq import checkpoint_utils, tasks
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from masked_checkpoints import WORKERS, refused, train_arch
from stock import LAST, make_data, train
from test_commands import MODEL, TRAIN
from torch import nn
from torch.testing import assert_close

from lite_transformer_plugin.criterions.head_mask import HeadMaskCriterion
from lite_transformer_plugin.heads import importance, masked, parse_heads
from lite_transformer_plugin.heads.dynamics import SUMS, importance_of
from lite_transformer_plugin.tasks.sentences import batches

TOKENS = 65  # in the target sentences of the split valid
MASK = ["--task", "prune_heads", "--criterion", "head_mask"]
# gates at the edge of closing, which move fast: some close within a few updates
GATES = [*MASK, "--head-l0", 0.1, "--head-l0-init", -2.3, "--head-l0-speed", 30]
EVERY = ["--validate-interval-updates", 1, "--save-interval-updates", 1]
CLOSED = parse_heads("E:1:2 A:2:1,4 D:1:1-4")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """data/, and plain/checkpoint_last.pt after three updates."""
    folder = tmp_path_factory.mktemp("mask")
    make_data(folder)
    train_arch(folder / "data", folder / "plain", "transformer", "--max-update", 3)
    return folder


@pytest.fixture
def task(work):
    """With a model loaded, and the validation data."""
    options = dict(data=str(work / "data"), dataset_impl=None, required_seq_len_multiple=1)
    task = tasks.setup_task(Namespace(task="prune_heads", **options))
    [model], _ = checkpoint_utils.load_model_ensemble([str(work / "plain" / LAST)], task=task)
    task.load_dataset("valid")
    assert task.model is model
    return task


def criterion_of(task, **options) -> HeadMaskCriterion:
    return HeadMaskCriterion(task, False, 0.1, report_accuracy=True, **options)


def stock_of(task) -> LabelSmoothedCrossEntropyCriterion:
    return LabelSmoothedCrossEntropyCriterion(task, False, 0.1, report_accuracy=True)


def close(criterion: HeadMaskCriterion, heads) -> None:
    for head in heads:
        criterion.gates.scaled[f"{head.part}:{head.layer}"].data[head.head - 1] = -3
    assert criterion.gates.closed() == list(heads)


# --- the loss and the penalty ---------------------------------------------------------------------


def test_what_validation_says_is_the_stock_loss(task):
    criterion, model = criterion_of(task).eval(), task.model.eval()
    for sample in batches(task, "valid", model):
        with torch.no_grad():
            expected = stock_of(task).eval()(model, sample)
            for criterion.recording in (False, True):
                loss, size, logged = criterion(model, sample)
                assert torch.equal(loss, expected[0]) and size == expected[1]
                assert not loss.requires_grad
                assert (SUMS in logged) == criterion.recording
                logged.pop(SUMS, None)
                assert logged == expected[2]


@pytest.mark.parametrize("recording", [False, True])
def test_in_validation_closed_heads_are_masked_and_the_others_are_not(task, recording):
    criterion, model = criterion_of(task, head_l0=0.1, head_l0_init=0.0), task.model.eval()
    close(criterion, CLOSED)
    [sample] = batches(task, "valid", model)
    with masked(model, CLOSED):
        expected = stock_of(task)(model, sample)
    criterion.recording = recording
    with torch.no_grad():
        loss, _, logged = criterion.eval()(model, sample)
    assert_close(loss, expected[0].detach())
    if recording:
        scores = importance_of(model, logged[SUMS], "sentence").scores
        assert [head for head in scores if scores[head] == 0] == CLOSED
    # the same heads translate in --eval-bleu
    assert_close(model(**sample["net_input"])[0], masked_output(model, CLOSED, sample))


def masked_output(model, heads, sample):
    gates = [a for a in model.modules() if hasattr(a, "gated")]
    assert len(gates) == 3
    with masked(model, heads):  # once more changes nothing
        return model(**sample["net_input"])[0]


def test_the_penalty_is_weighed_against_the_loss_per_token(task):
    """fairseq divides gradients by the number of tokens."""
    criterion, model = criterion_of(task, head_l0=0.2, head_l0_init=0.5), task.model
    [sample] = batches(task, "valid", model)
    model.eval(), criterion.train()
    torch.manual_seed(3)
    loss, size, logged = criterion(model, sample)
    penalty = 0.2 * criterion.gates.expected_open()
    assert_close(loss, logged["loss"] + size * penalty)
    assert size == sample["ntokens"]
    assert_close(logged["l0_penalty"], penalty.detach())
    assert logged["open_heads"] == 24
    assert_close(logged["expected_l0"], 6 * criterion.gates.expected_open().detach())


def test_gradients_of_gates_are_finite_differences(task, monkeypatch):
    """Of loss and penalty together, in float64 and for given noise."""
    model = task.model.double().eval()
    criterion = criterion_of(task, head_l0=0.3, head_l0_init=0.1, head_l0_speed=2.0).double()
    [sample] = batches(task, "valid", model)
    noise = torch.rand(4, dtype=torch.double).mul(0.4).add(0.3)
    for name in ("softmax", "log_softmax"):  # which fairseq takes in float32
        stock = getattr(nn.functional, name)
        monkeypatch.setattr(nn.functional, name, lambda x, dim, dtype=None, f=stock: f(x, dim))
    monkeypatch.setattr(torch, "rand_like", lambda like: noise)
    loss = criterion.train()(model, sample)[0]
    loss.backward()
    step = 1e-6
    for gates in criterion.gates.scaled.values():
        for i in (0, 3):
            with torch.no_grad():
                gates[i] += step
                more = criterion(model, sample)[0]
                gates[i] -= 2 * step
                less = criterion(model, sample)[0]
                gates[i] += step
            assert gates.grad[i].item() == pytest.approx(
                ((more - less) / (2 * step)).item(), rel=1e-5
            )


def test_gates_are_drawn_for_every_pass_in_training(task):
    criterion, model = criterion_of(task, head_l0=0.0), task.model.eval()
    [sample] = batches(task, "valid", model)
    losses = {criterion.train()(model, sample)[0].item() for _ in range(3)}
    assert len(losses) == 3
    assert len({criterion.eval()(model, sample)[0].item() for _ in range(2)}) == 1


@pytest.mark.parametrize("unit", ["token", "batch"])
def test_other_units(task, unit):
    criterion, model = criterion_of(task, validation_importance=unit).eval(), task.model
    criterion.recording = True
    sums = sum(criterion(model, sample)[2][SUMS] for sample in batches(task, "valid", model))
    expected = importance.measure(
        model, stock_of(task), batches(task, "valid", model), unit, normalise=False
    )
    assert importance_of(model, sums, unit).scores == pytest.approx(expected.scores, rel=1e-5)


def test_a_loss_that_is_not_finite_does_not_stop_validation(task):
    criterion, model = criterion_of(task).eval(), task.model
    criterion.recording = True
    model.decoder.layers[0].fc1.bias.data[0] = float("nan")
    [sample] = batches(task, "valid", model)
    loss, _, logged = criterion(model, sample)
    assert loss.isnan() and not logged[SUMS].isfinite().all()


# --- bad input ------------------------------------------------------------------------------------

BAD = {
    ("--head-l0", "-0.1"): r"--head-l0 \(-0.1\) must be a number that is not negative",
    ("--head-l0", "nan"): r"--head-l0 \(nan\) must be a number",
    ("--head-l0", "1", "--head-l0-speed", "0"): r"--head-l0-speed \(0\) must be positive",
    ("--head-l0", "1", "--head-l0-init", "inf"): r"--head-l0-init \(inf\) must be a number",
    ("--head-l0-init", "1"): "go with --head-l0: give it, too",
    ("--head-l0", "1", "--prune-ratio", "1", "--prune-end", "9"): "--prune-end and --head-l0 both",
    ("--task", "translation"): "--criterion head_mask needs --task prune_heads",
}


@pytest.mark.parametrize("words, message", BAD.items(), ids=map(" ".join, BAD))
def test_bad_input_is_one_line(work, tmp_path, words, message):
    with refused(message):
        train_arch(work / "data", tmp_path, "transformer", *MASK, *words)
    assert not list(tmp_path.iterdir())


def test_a_model_without_heads(work, tmp_path):
    with refused("LSTMModel has no attention heads"):
        how = ["--arch", "lstm", *TRAIN[len(MODEL) :], *WORKERS]
        train(work / "data", tmp_path, *GATES, how=how)
