"""The mean of checkpoints: right in every precision, shared tensors shared, memory of one."""

import gc
import weakref
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch.testing import assert_close

from lite_transformer_plugin import averaging
from lite_transformer_plugin.averaging import Mean, average

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def save(path: Path, model: dict, updates: int = 0, **more) -> Path:
    """A checkpoint as fairseq-train writes it."""
    state = {
        "cfg": {"model": {"_name": "transformer"}, "checkpoint": {}},
        "model": OrderedDict(model),
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": torch.zeros(1000)},
    }
    torch.save(state | more, path)
    return path


def random(count: int, shape=(5, 3), dtype=torch.float32, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_mean_is_the_nearest_number_of_its_own_precision(dtype, tmp_path):
    tensors = random(7, dtype=dtype)
    paths = [save(tmp_path / f"{i}.pt", {"w": tensor}) for i, tensor in enumerate(tensors)]
    mean = average(paths)["model"]["w"]
    assert mean.dtype == dtype
    assert_close(mean, torch.stack(tensors).double().mean(dim=0).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
def test_equal_checkpoints_are_their_own_mean(dtype, tmp_path):
    tensor = (random(1, shape=(1000,))[0] * 1e-3).to(dtype)
    paths = [save(tmp_path / f"{i}.pt", {"w": tensor}) for i in range(3)]
    assert_close(average(paths)["model"]["w"], tensor, rtol=0, atol=0)


def test_large_half_precision_weights_do_not_overflow(tmp_path):
    paths = [save(tmp_path / f"{i}.pt", {"w": torch.full((2,), 6e4).half()}) for i in range(9)]
    assert average(paths)["model"]["w"].tolist() == [60000, 60000]


def test_mixed_precisions_take_the_wider(tmp_path):
    tensors = [torch.ones(2).half(), torch.ones(2) / 3]
    paths = [save(tmp_path / f"{i}.pt", {"w": tensor}) for i, tensor in enumerate(tensors)]
    mean = average(paths)["model"]["w"]
    assert_close(mean, torch.full((2,), 2 / 3), rtol=1e-7, atol=0)


def test_shared_tensors_are_summed_once_and_shared_again(tmp_path):
    paths = []
    for i, tensor in enumerate(random(3)):
        model = {"a": tensor, "other": tensor.clone(), "b": tensor, "part": tensor[:2]}
        paths.append(save(tmp_path / f"{i}.pt", model))
    model = average(paths)["model"]
    assert list(model) == ["a", "other", "b", "part"]
    assert_close(model["a"], torch.stack(random(3)).mean(dim=0))
    torch.save(model, tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt")
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in again.items()}
    assert places["a"] == places["b"] and len(set(places.values())) == 3
    assert_close(again["part"], again["a"][:2])


def test_tensors_that_part_in_one_checkpoint_have_their_own_means(tmp_path):
    one, two = random(2)
    shared = [save(tmp_path / f"{i}.pt", {"a": one, "b": one, "c": one}) for i in (1, 3)]
    parted = save(tmp_path / "2.pt", {"a": one, "b": two, "c": one})
    model = average([shared[0], parted, shared[1]])["model"]
    assert_close(model["a"], one, rtol=0, atol=0)
    assert_close(model["b"], (2 * one + two) / 3)
    assert model["c"] is model["a"] and model["b"] is not model["a"]


def test_integers_have_no_mean(tmp_path):
    def checkpoint(i: int, codes: list[int]) -> Path:
        model = {"count": torch.tensor(i), "codes": torch.tensor(codes), "on": torch.tensor(True)}
        return save(tmp_path / f"{i}.pt", model, updates=i)

    new, old, other = checkpoint(8, [1, 2]), checkpoint(5, [1, 2]), checkpoint(6, [1, 3])
    model = average([new, old])["model"]
    assert model["count"].item() == 8 and model["count"].dtype == torch.int64
    assert model["codes"].tolist() == [1, 2] and model["on"].item() is True
    with pytest.raises(ValueError, match=r"6\.pt: codes holds other integers than in .*8\.pt"):
        average([new, old, other])


def test_the_rest_is_that_of_the_newest_without_its_optimizer(tmp_path):
    model = {"w": torch.ones(1), "extra": {"not": "a tensor"}}
    paths = [
        save(tmp_path / f"{i}.pt", model, updates=i, cfg={"model": i}, task_state={"from": i})
        for i in (1, 9, 3)
    ]
    state = average(paths)
    assert state["cfg"] == {"model": 9} and state["task_state"] == {"from": 9}
    assert state["optimizer_history"] == [{"num_updates": 9}]
    assert state["model"]["extra"] == {"not": "a tensor"}
    assert "last_optimizer_state" not in state and "extra_state" in state


def test_checkpoints_of_every_age_are_averaged(tmp_path):
    """Arguments instead of a configuration; omegaconf objects; torch's format before zip files."""
    model = {"w": torch.ones(2)}
    paths = [
        save(tmp_path / "args.pt", model, args=Namespace(arch="transformer"), cfg=None),
        save(tmp_path / "omega.pt", model, cfg=OmegaConf.create({"model": {"_name": "x"}})),
    ]
    paths.append(tmp_path / "legacy.pt")
    torch.save({"model": model}, paths[-1], _use_new_zipfile_serialization=False)
    for path in paths:
        assert average([path, path])["model"]["w"].tolist() == [1, 1]
    assert average(paths[:1])["args"].arch == "transformer"


@pytest.mark.parametrize(
    "model, message",
    [
        ({"a": torch.zeros(2, 3)}, "b is missing, but numbers of shape (4,) in first"),
        (
            {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(1)},
            "c is numbers of shape (1,), but missing in first",
        ),
        (
            {"a": torch.zeros(3, 2), "b": torch.zeros(4)},
            "a is numbers of shape (3, 2), but numbers of shape (2, 3) in first",
        ),
        (
            {"a": torch.zeros(2, 3), "b": torch.zeros(4).int()},
            "b is integers of shape (4,), but numbers of shape (4,) in first",
        ),
        ({"a": torch.zeros(2, 3), "b": None}, "b is no tensor, but"),
    ],
)
def test_models_that_do_not_fit_are_refused(model, message):
    mean = Mean()
    mean.add({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, "first")
    with pytest.raises(ValueError) as caught:
        mean.add(model, "second")
    assert str(caught.value).startswith("second: " + message)


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="no checkpoints"):
        average([])


def test_one_checkpoint_is_held_at_a_time(tmp_path, monkeypatch):
    """Beside the sums, there are never the weights of two."""
    paths = [save(tmp_path / f"{i}.pt", {"w": torch.ones(2)}, updates=i) for i in range(4)]
    weights: list[weakref.ref] = []
    read = averaging.read

    def watched(path):
        gc.collect()
        assert not [reference for reference in weights if reference() is not None]
        state = read(path)
        weights.extend(weakref.ref(tensor) for tensor in state["model"].values())
        weights.append(weakref.ref(state["last_optimizer_state"]["state"]))
        return state

    monkeypatch.setattr(averaging, "read", watched)
    average(paths)
    assert len(weights) == 8
