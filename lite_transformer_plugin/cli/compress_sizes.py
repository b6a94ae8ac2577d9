"""How many bytes a compressed checkpoint takes: all of the file, and by the authors' count."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..compression import KEY, Coded, sizes

SMALLEST = 1024  # weights of a tensor that is worth a codebook


def is_weight(tensor: Tensor) -> bool:
    """Whether it gets codes and zeros: biases and the like stay as they are."""
    return tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() >= SMALLEST


def is_embedding(name: str) -> bool:
    return "embed_" in name


def baseline(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """4 bytes a parameter, tied ones once."""
    embeddings = 4 * sum(t.numel() for name, t in tensors.items() if is_embedding(name))
    weights = 4 * sum(t.numel() for t in tensors.values()) - embeddings
    whole = {"bytes": embeddings + weights, "embeddings": embeddings, "weights": weights}
    return whole | {"ratio": 1.0, "authors_bytes": weights, "authors_ratio": 1.0}


def count_bytes(
    state: Mapping[str, Any],
    coded: Mapping[str, Coded],
    size: int,
    numbers: Mapping[str, int],
) -> dict[str, float]:
    """A file's bytes by part, and how often it goes into the baseline.

    Args:
        state: the checkpoint, and ``coded`` what is in it.
        size: of the file.
        numbers: of the weights in each tensor, tied ones once.
    """
    others = [name for name in numbers if not is_embedding(name)]
    theirs = sum(authors_bytes(coded[name]) for name in others)
    return by_part(state, size) | {
        "ratio": 4 * sum(numbers.values()) / size,
        "authors_bytes": theirs,
        "authors_ratio": 4 * sum(numbers[name] for name in others) / theirs,
    }


def by_part(state: Mapping[str, Any], size: int) -> dict[str, int]:
    """Codes, or values, of embeddings and of other weights; what these need; the rest."""
    found = dict.fromkeys(("embeddings", "weights", "positions", "codebooks", "plain"), 0)
    for name, part in sizes(state["model"][KEY]).items():
        kind = "embeddings" if is_embedding(name) else "weights"
        found["positions"] += part.positions
        if part.bits:
            found[kind] += part.codes
            found["codebooks"] += part.values
        else:
            found[kind if part.numel >= SMALLEST else "plain"] += part.values
    return {"bytes": size, **found, "settings": size - sum(found.values())}


def authors_bytes(coded: Coded) -> float:
    """Weights without codebooks and indices, as the authors of Lite Transformer count."""
    if coded.codes is None:
        return coded.values.nbytes
    return coded.stored * coded.bits / 8
