"""The mean of several checkpoints of one training run, as in Vaswani et al. (2017), section 6.1.

One checkpoint is read after the other, and only its weights: memory is that of the sums. The
result is the newest checkpoint with other weights and without its optimizer, which is what
fairseq-train writes under --no-save-optimizer-state.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint_files import read, updates


def average(paths: Sequence[str | Path]) -> dict[str, Any]:
    """The newest of these checkpoints with the mean of all weights and no optimizer state.

    Raises:
        ValueError: if one is no checkpoint or does not fit to the first, naming file and tensor.
    """
    mean, newest = Mean(), None
    for path in paths:
        state = read(path)
        mean.add(state["model"], str(path))
        state.pop("last_optimizer_state", None)
        for name in mean.sum_of:
            state["model"][name] = None  # frees it, and keeps its place
        if newest is None or updates(state) >= updates(newest):
            newest = state
    if newest is None:
        raise ValueError("no checkpoints to average")
    newest["model"].update(mean.result())
    return newest


class Mean:
    """Adds models up, one after the other, in float64: equal ones are their own mean, exactly.

    Names that share a tensor in all models have one sum. Tensors of integers are no quantities:
    counters, which are single numbers, are left to the newest model, others must be the same.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""  # where the first model came from
        self.kinds: dict[str, Any] = {}  # what it holds under which name
        self.sums: dict[str, Tensor] = {}
        self.sum_of: dict[str, str] = {}  # the name under which a name's sum is kept
        self.dtypes: dict[str, torch.dtype] = {}
        self.codes: dict[str, Tensor] = {}

    def add(self, model: Mapping[str, Any], source: str) -> None:
        """Add one model; `source` is where it came from, for messages.

        Raises:
            ValueError: if it does not fit to the first, naming source and tensor.
        """
        self._check(model, source)
        quantities = {name: value for name, value in model.items() if _is_quantity(value)}
        self._share(quantities)
        for name in self.sums:
            self.sums[name] += quantities[name]
        for name, tensor in quantities.items():
            dtype = self.dtypes.get(name, tensor.dtype)
            self.dtypes[name] = torch.promote_types(dtype, tensor.dtype)
        self.count += 1

    def result(self) -> dict[str, Tensor]:
        """The mean of every tensor, in its own precision; shared ones are shared again."""
        means: dict[tuple[str, torch.dtype], Tensor] = {}
        for name, kept in self.sum_of.items():
            if (kept, self.dtypes[name]) not in means:
                mean = (self.sums[kept] / self.count).to(self.dtypes[name])
                means[kept, self.dtypes[name]] = mean
        return {name: means[kept, self.dtypes[name]] for name, kept in self.sum_of.items()}

    def _check(self, model: Mapping[str, Any], source: str) -> None:
        kinds = {name: _kind(value) for name, value in model.items()}
        codes = {name: value for name, value in model.items() if _is_code(value)}
        if not self.count:
            self.first, self.kinds, self.codes = source, kinds, codes
        for name in [*self.kinds, *kinds]:
            ours, theirs = kinds.get(name, "missing"), self.kinds.get(name, "missing")
            if ours != theirs:
                raise ValueError(f"{source}: {name} is {ours}, but {theirs} in {self.first}")
        for name, value in codes.items():
            if not torch.equal(value, self.codes[name]):
                raise ValueError(
                    f"{source}: {name} holds other integers than in {self.first}; "
                    "codes and indices have no mean"
                )

    def _share(self, quantities: Mapping[str, Tensor]) -> None:
        """Find a sum for every name; names part as soon as one model does not share them."""
        owners: dict[tuple, str] = {}
        for name, tensor in quantities.items():
            before = self.sum_of.get(name)
            owner = owners.setdefault((before, _place(tensor)), name)
            if owner not in self.sums:
                dtype = torch.promote_types(tensor.dtype, torch.float64)
                zeros = torch.zeros(tensor.shape, dtype=dtype)
                self.sums[owner] = zeros if before is None else self.sums[before].clone()
            self.sum_of[name] = owner


def _is_quantity(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _is_code(value: Any) -> bool:
    return isinstance(value, Tensor) and not _is_quantity(value) and value.numel() > 1


def _kind(value: Any) -> str:
    """What must be the same in all models, in words."""
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{'numbers' if _is_quantity(value) else 'integers'} of shape {tuple(value.shape)}"


def _place(tensor: Tensor) -> tuple:
    """Where a tensor lies: tensors of the same place are one."""
    memory = tensor.untyped_storage().data_ptr()
    return memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
