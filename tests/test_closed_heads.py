"""Closed heads: a state dict in which they are zero is that of the masked model."""

import copy

import pytest
import torch
from conftest import dictionary, parse_model, randomise, stub_task
from fairseq.models import build_model
from torch.testing import assert_close

from lite_transformer_plugin.heads import list_heads, masked, parse_heads
from lite_transformer_plugin.heads.closed import (
    Switch,
    closed_heads,
    columns_of,
    restore_columns_,
    save_closed,
)
from lite_transformer_plugin.heads.removal import remove_heads_

GONE = parse_heads("E:1:2 A:2:1,4 D:1:1-4")
SOURCE, LENGTHS = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]]), torch.tensor([4, 3])
TARGET = torch.tensor([[2, 9, 8], [2, 6, 1]])


def make(arch: str, seed: int = 0) -> torch.nn.Module:
    words = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16"]
    words += ["--encoder-layers", "2", "--decoder-layers", "2"]
    words += ["--encoder-attention-heads", "4", "--decoder-attention-heads", "4"]
    model = build_model(parse_model("--arch", arch, *words), stub_task(dictionary()))
    return randomise(model, seed).eval()


def output(model: torch.nn.Module) -> torch.Tensor:
    return model(SOURCE, LENGTHS, TARGET)[0]


@pytest.mark.parametrize("arch", ["transformer", "lite_transformer"])
def test_a_state_dict_with_closed_heads_is_the_masked_model(arch):
    model, gone = make(arch), []
    save_closed(model, lambda: gone)
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert closed_heads(model) == [] and not closed_heads(restored(arch, model))
    gone += GONE
    saved = restored(arch, model)
    assert closed_heads(saved) == GONE
    with masked(model, GONE):
        assert_close(output(saved), output(model))
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    gone.clear()
    assert_close(output(restored(arch, model)), output(model))


def restored(arch: str, model: torch.nn.Module) -> torch.nn.Module:
    other = make(arch, seed=5)
    other.load_state_dict(model.state_dict())
    return other


def test_a_copy_of_the_model_and_a_part_of_another():
    """fairseq's moving average is a copy; its wrappers have the model inside."""
    model = make("transformer")
    save_closed(model, lambda: GONE)
    twin = copy.deepcopy(model)
    randomise(twin, 7)
    for state in (twin.state_dict(), torch.nn.ModuleList([twin])[0].state_dict()):
        loaded = make("transformer")
        loaded.load_state_dict(state)
        assert closed_heads(loaded) == GONE
    assert (
        "0.decoder.layers.1.encoder_attn.out_proj.weight"
        in torch.nn.ModuleList([twin]).state_dict()
    )


def test_columns_come_back_where_there_still_are_heads():
    model = make("transformer")
    columns = columns_of(model, GONE)
    assert list(columns) == [str(head) for head in GONE]
    assert columns["E:1:2"].shape == (16, 4)
    smaller = make("transformer", seed=1)
    remove_heads_(smaller, parse_heads("A:2:1 D:1:1-4"))
    restore_columns_(smaller, columns)
    found = columns_of(smaller, parse_heads("E:1:2 A:2:4"))
    assert all(torch.equal(found[name], columns[name]) for name in found)
    others = columns_of(smaller, parse_heads("E:1:1 A:2:3"))
    assert not any(
        torch.equal(others[name], columns_of(model, list_heads(model))[name]) for name in others
    )


def test_gates_of_a_switch_replace_each_other():
    model = make("transformer")
    plain, switch = output(model), Switch(model)
    switch.mask(GONE)
    closed = output(model)
    switch.set({("E", 2): torch.tensor([1.0, 0.5, 1.0, 1.0])})
    halved = output(model)
    switch.mask([])
    assert torch.equal(output(model), plain)
    assert not torch.allclose(closed, plain) and not torch.allclose(halved, plain)
    with masked(model, GONE):
        assert torch.equal(output(model), closed)
