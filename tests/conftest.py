"""Shared by the tests: a dictionary, a stub task, models built as the commands build them."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model

import lite_transformer_plugin  # noqa: F401  (registers the models)

torch.set_num_threads(1)

TINY = ["--encoder-embed-dim", "16", "--encoder-layers", "2", "--decoder-layers", "2"]


def dictionary(words: int = 20) -> Dictionary:
    """A dictionary of `words` words beside fairseq's four special symbols."""
    result = Dictionary()
    for i in range(words):
        result.add_symbol(f"w{i}")
    return result


def stub_task(source: Dictionary, target: Dictionary | None = None) -> SimpleNamespace:
    """All that building a model asks of a task."""
    return SimpleNamespace(source_dictionary=source, target_dictionary=target or source)


def parse_model(*argv: str):
    """The model configuration that `fairseq-train` makes of its command line."""
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", "--task", "translation", *argv])
    return convert_namespace_to_omegaconf(args).model


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random values everywhere: at initialisation biases are zero and leaks cannot be seen."""
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3)
    return module


@pytest.fixture
def build():
    """Build a model from command-line words, with random weights everywhere, in evaluation."""

    def build(*argv: str, task=None):
        torch.manual_seed(1)
        model = build_model(parse_model(*argv), task or stub_task(dictionary()))
        return randomise(model).eval()

    return build
