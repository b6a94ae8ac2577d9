"""Each mend: the fault is really there without it, and gone with it."""

import argparse
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import data_utils
from omegaconf import OmegaConf

from lite_transformer_plugin import compat

PACKAGE = Path(compat.__file__).parent


@pytest.fixture
def stock(monkeypatch):
    """fairseq's batch_by_size as it is without us."""
    mended = data_utils.batch_by_size
    return mended.__closure__[0].cell_contents if mended.__closure__ else mended


def lengths(count: int) -> np.ndarray:
    return np.full(count, 10)


@pytest.mark.parametrize("count", [1, 5, 7, 8, 60, 63, 64, 65])
@pytest.mark.parametrize("limit", [dict(max_tokens=100), dict(max_sentences=8), dict()])
def test_no_sentence_is_dropped(count, limit, stock):
    options = dict(num_tokens_vec=lengths(count), required_batch_size_multiple=8, **limit)
    indices = np.arange(count)
    batches = data_utils.batch_by_size(indices, lambda i: 10, **options)
    assert np.concatenate(batches).tolist() == indices.tolist()
    kept = stock(indices, lambda i: 10, **options)
    assert [list(b) for b in batches[: len(kept)]] == [list(b) for b in kept]


def test_fairseq_still_drops_the_last_batch(stock):
    """When this fails, fairseq is mended and the mend can go."""
    batches = stock(np.arange(60), None, lengths(60), 200, None, 8)
    assert sum(map(len, batches)) == 56


def test_indices_may_come_one_by_one():
    batches = data_utils.batch_by_size(iter(range(5)), lambda i: 10, None, 100, None, 8)
    assert np.concatenate(batches).tolist() == [0, 1, 2, 3, 4]


class Stranger:
    """A class that nobody allowed."""

    def __reduce__(self):
        return (Path.touch, (Path("touched-by-a-checkpoint"),))


def fairseq_like_state() -> dict:
    cfg = OmegaConf.create({"model": {"_name": "x", "sizes": [1, 2.5, "three"], "none": None}})
    return {
        "args": argparse.Namespace(arch="transformer", lr=[0.1]),
        "cfg": cfg,
        "extra_state": {
            "best": np.float64(1.5),
            "count": np.int64(3),
            "flags": np.array([True, False]),
            "sums": np.float32(0.25),
        },
        "model": {"weight": torch.ones(2)},
    }


def test_checkpoints_load_under_the_safe_loader(tmp_path):
    torch.save(fairseq_like_state(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt")
    assert state["extra_state"]["best"] == 1.5
    assert state["extra_state"]["flags"].tolist() == [True, False]


def test_numpy_scalars_of_the_other_numpy_load(tmp_path, monkeypatch):
    """numpy 1 and 2 pickle scalars under different module names."""
    path = tmp_path / "model.pt"
    torch.save({"value": np.float64(1.5)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    here, other = b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"
    if other in content:
        here, other = other, here
    assert here in content
    path.write_bytes(content.replace(here, other))
    assert torch.load(path)["value"] == 1.5


def test_a_checkpoint_with_another_class_is_refused_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(fairseq_like_state() | {"stranger": Stranger()}, "model.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint_utils.load_checkpoint_to_cpu("model.pt")
    assert not Path("touched-by-a-checkpoint").exists()


def test_without_the_mend_checkpoints_are_refused(tmp_path):
    torch.save(fairseq_like_state(), tmp_path / "model.pt")
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(Exception, match="Weights only load failed"):
            torch.load(tmp_path / "model.pt")
    finally:
        torch.serialization.add_safe_globals(allowed)


def test_numpy_2_has_what_fairseq_reads(monkeypatch):
    monkeypatch.delattr(np, "compat", raising=False)
    with pytest.raises(AttributeError):
        np.compat.long  # noqa: B018
    compat.restore_numpy_compat()
    assert np.zeros(1, dtype=np.compat.long).dtype == np.int64


def test_a_second_copy_of_the_package_is_the_same_plugin(tmp_path, monkeypatch):
    """Installed and checked out side by side: the copy imported first serves."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    monkeypatch.chdir(tmp_path)
    user_dir = argparse.Namespace(user_dir=PACKAGE.name)
    with pytest.raises(ImportError, match="not globally unique"):
        utils.import_user_module(user_dir)
    utils.import_user_module.memo.discard(str(tmp_path / PACKAGE.name))
    compat.know_own_folders()
    utils.import_user_module(user_dir)


def task_of(path: Path, load=None, **told) -> dict:
    """The task in a checkpoint of translation, loaded with these overrides."""
    state = {
        "args": None,
        "cfg": OmegaConf.create({"task": {"_name": "translation", "data": "old"}, "model": {}}),
        "optimizer_history": [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": {}},
    }
    torch.save(state, path / "model.pt")
    load = load or checkpoint_utils.load_checkpoint_to_cpu
    return dict(load(str(path / "model.pt"), told)["cfg"]["task"])


TOLD = {"task": "prune_heads", "mask_heads": "E:1:3"}
SET = {"_name": "prune_heads", "mask_heads": "E:1:3"}


def test_fairseq_still_drops_the_task_it_is_told(tmp_path):
    """When this fails, fairseq is mended and the mend can go."""
    stock = inspect.unwrap(checkpoint_utils.load_checkpoint_to_cpu)
    assert task_of(tmp_path, stock, **TOLD) == {"_name": "translation", "data": "old"}


def test_our_task_is_built_as_told(tmp_path):
    assert task_of(tmp_path, **TOLD) == SET | {"data": "old"}
    assert task_of(tmp_path, **TOLD, data="new") == SET | {"data": "new"}
    assert task_of(tmp_path, task=SET, data="new") == SET | {"data": "new"}
    assert task_of(tmp_path, task=SET | {"data": "newer"}, data="new") == SET | {"data": "newer"}
    assert task_of(tmp_path, task=SET, keep_heads="E:2:1") == SET | dict(
        data="old", keep_heads="E:2:1"
    )


@pytest.mark.parametrize("told", [{}, {"task": "translation_lev", "noise": "no_noise"}])
def test_other_tasks_are_those_of_the_checkpoint(tmp_path, told):
    assert task_of(tmp_path, **told) == {"_name": "translation", "data": "old"}
    given = {"_name": "translation_lev", "noise": "no_noise"}
    assert task_of(tmp_path, task=given, data="new") == given | {"data": "old"}


def test_mending_twice_changes_nothing():
    def mended() -> tuple:
        loading = (
            checkpoint_utils.load_checkpoint_to_cpu,
            checkpoint_utils.load_model_ensemble_and_task,
        )
        return data_utils.batch_by_size, options.parse_args_and_arch, loading

    before = mended()
    compat.mend()
    assert mended() == before


def test_importing_is_quiet():
    """Nothing is printed or logged at import."""
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", "import lite_transformer_plugin"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == ""
    assert "lite_transformer" not in result.stderr
