"""Packed tensors come back bit for bit, or not at all."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_transformer_plugin.compression import expand, expand_all, keep, pack, quantize, unpack
from lite_transformer_plugin.compression.container import KEY, pack_bits, sizes, unpack_bits


def tensor(*shape: int, zeros: float = 0.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=generator)
    return found * (torch.rand(shape, generator=generator) >= zeros)


def example() -> dict:
    tied = quantize(tensor(40, 16), 4)
    return {
        "embed.weight": tied,
        "sparse.weight": quantize(tensor(32, 33, zeros=0.7), 3),
        "grouped.weight": quantize(tensor(30, 16, zeros=0.2), 5, group_rows=7),
        "zeros only": keep(tensor(20, 20, zeros=0.5), exact=True),
        "bias": keep(tensor(7)),
        "version": keep(torch.tensor([3.0])),
        "steps": keep(torch.tensor(12)),
        "half": keep(tensor(5).half()),
        "none": keep(torch.zeros(0)),
        "all zeros": quantize(torch.zeros(8, 200), 2),
        "output.weight": tied,
    }


def same(a, b) -> bool:
    pairs = [(a.values, b.values), (a.codes, b.codes), (a.positions, b.positions)]
    return (a.shape, a.dtype, a.bits, a.group_rows) == (
        b.shape,
        b.dtype,
        b.bits,
        b.group_rows,
    ) and (all((x is None and y is None) or torch.equal(x, y) for x, y in pairs))


def test_everything_comes_back():
    tensors = example()
    found = unpack(pack(tensors))
    assert list(found) == list(tensors)
    for name in tensors:
        assert same(found[name], tensors[name]), name
        assert torch.equal(expand(found[name]), expand(tensors[name])), name
    assert found["embed.weight"] is found["output.weight"]
    full = expand_all({KEY: pack(tensors)})
    assert full["embed.weight"] is full["output.weight"]


def test_the_same_tensors_give_the_same_bytes():
    assert torch.equal(pack(example()), pack(example()))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_codes_of_any_number_and_size(bits, count, seed):
    codes = np.random.RandomState(seed).randint(0, 2**bits, count).astype(np.uint8)
    data = pack_bits(codes, bits)
    assert len(data) == -(-count * bits // 8)
    assert np.array_equal(unpack_bits(data, bits, count), codes)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("zeros", [0, 0.3, 0.9])
def test_smaller_than_codes_and_positions_of_full_size(bits, zeros):
    coded = quantize(tensor(120, 100, zeros=zeros), bits)
    size = sizes(pack({"w": coded}))["w"]
    assert size.codes <= -(-coded.stored * bits // 8) and size.weights == coded.stored
    assert size.positions <= 12000 // 8 and (size.positions > 0) == (zeros > 0)
    assert same(unpack(pack({"w": coded}))["w"], coded)


def test_entropy_coding_pays_where_codes_repeat():
    coded = quantize(tensor(100, 100).sign() + 1e-3 * tensor(100, 100), 8)
    assert sizes(pack({"w": coded}))["w"].codes < 9000


def test_a_flipped_byte_is_never_a_tensor():
    """Any byte: the tensor is named, or the header."""
    tensors = example()
    packed, draw = pack(tensors), random.Random(0)
    places = [*range(40), *draw.sample(range(len(packed)), 150), len(packed) - 1]
    named = set()
    for place in places:
        damaged = packed.clone()
        damaged[place] ^= 1 << draw.randrange(8)
        with pytest.raises(ValueError, match="damaged") as error:
            unpack(damaged)
        named.add(str(error.value))
    assert "the header of the compressed tensors is damaged" in named
    assert any("sparse.weight" in text for text in named)
    assert any("embed.weight" in text for text in named)


@pytest.mark.parametrize("left", [0, 3, 11, 100, 0.5, -1])
def test_cut_short(left):
    packed = pack(example())
    end = int(left * len(packed)) if isinstance(left, float) else left
    with pytest.raises(ValueError, match="damaged"):
        unpack(packed[:end])


def test_what_is_not_packed_is_as_it_was():
    model = {"weight": tensor(3, 3)}
    assert expand_all(model)["weight"] is model["weight"]
