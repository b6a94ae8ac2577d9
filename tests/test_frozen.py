"""Measuring importance leaves the model as it was, whatever it is in the middle of."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper
from importance_batches import SMOOTHED, TASK, assert_same, batches_of, importance_of, model_of
from torch import nn

from lite_transformer_plugin.heads.importance import ImportanceMeter, measure


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
