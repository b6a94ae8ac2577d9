"""Coded weights of a model as parameters: training moves the values, never codes or positions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .quantize import Coded, Lookup, expand, keep


class FromValues(nn.Module):
    """The weight whose stored values are the parameter; its codes and positions stay."""

    def __init__(self, coded: Coded):
        super().__init__()
        self.shape = coded.shape
        stored = torch.arange(coded.stored) if coded.codes is None else coded.index().long()
        if coded.positions is not None:  # the value of all zeros comes first
            full = torch.zeros(coded.numel, dtype=torch.int64)
            full[coded.positions] = stored + 1
            stored = full
        self.has_zeros = coded.positions is not None
        self.values = coded.values
        self.register_buffer("index", stored, persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """values (G, K) or (N) -> the weight."""
        flat = values.flatten()
        if self.has_zeros:
            flat = torch.cat([flat.new_zeros(1), flat])
        return Lookup.apply(flat, self.index).reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The values that the weight was made of."""
        return self.values.to(weight.device, weight.dtype)


def owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def make_trainable_(model: nn.Module, tensors: Mapping[str, Coded]) -> None:
    """Put the values of coded weights in the place of the weights, as parameters.

    Tied weights get one parameter. What is stored without codes and positions stays a parameter
    as it is.
    """
    first: dict[int, nn.Parameter] = {}
    for name, coded in tensors.items():
        module, attribute = owner(model, name)
        if not is_coded(coded) or parametrize.is_parametrized(module, attribute):
            continue
        parametrize.register_parametrization(module, attribute, FromValues(coded), unsafe=True)
        chain = module.parametrizations[attribute]
        chain.original = first.setdefault(id(coded), chain.original)


def is_coded(coded: Coded) -> bool:
    return coded.codes is not None or coded.positions is not None


def trained_key(name: str) -> str:
    """The name under which a trainable model keeps the values of a weight."""
    path, _, attribute = name.rpartition(".")
    return f"{path}.parametrizations.{attribute}.original"


def coded_state(tensors: Mapping[str, Coded], state: Mapping[str, Tensor]) -> dict[str, Coded]:
    """These tensors with the values that they have in a trainable model's state."""
    found, by_id = {}, {}
    for name, coded in tensors.items():
        if id(coded) not in by_id:
            key = trained_key(name) if is_coded(coded) else name
            value = state[key].detach().cpu()
            by_id[id(coded)] = (
                coded.with_values(value) if is_coded(coded) else keep(value, exact=True)
            )
        found[name] = by_id[id(coded)]
    return found


def state_of(tensors: Mapping[str, Coded]) -> dict[str, Any]:
    """The reverse: what a trainable model loads."""
    coded = {trained_key(name): one.values for name, one in tensors.items() if is_coded(one)}
    return coded | {name: expand(one) for name, one in tensors.items() if not is_coded(one)}


def same_codes(a: Mapping[str, Coded], b: Mapping[str, Coded]) -> bool:
    """Whether two models differ in their values only."""
    if a.keys() != b.keys():
        return False
    return all(
        a[name].shape == b[name].shape
        and _equal(a[name].codes, b[name].codes)
        and _equal(a[name].positions, b[name].positions)
        for name in a
    )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or torch.equal(a, b))
