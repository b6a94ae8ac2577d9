"""The checkpoints of a training run: read safely and as they are, found by their names."""

import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

NUMBERED = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}
SCORED = r"checkpoint[._]best_(.+)_(-?\d+(?:\.\d+)?)\.pt"  # what --keep-best-checkpoints keeps

# --- reading --------------------------------------------------------------------------------------


def read(path: str | Path) -> dict[str, Any]:
    """A checkpoint exactly as it was saved, under torch's safe loader: a file cannot run code.

    fairseq's own loader turns the configuration into objects, which stock fairseq could not load
    again from a file. Tensors stay on disk until they are used.

    Raises:
        OSError: if the file is not there or must not be read.
        ValueError: if it is not a fairseq checkpoint.
    """
    check_header(path)
    try:
        state = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"holds a {refused[1]}, which the safe loader does not rebuild" if refused else ""
        raise ValueError(f"{path} {reason or 'is not a checkpoint'}") from error
    except Exception as error:  # whatever torch says depends on where the file ends
        raise ValueError(f"{path} is not a checkpoint, or is cut short") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path} is not a fairseq checkpoint: it has no model")
    return state


def check_header(path: str | Path) -> None:
    """See that what says where and what the tensors are is as it was written.

    torch does not look at the checksums of its files: a changed byte would change a setting.

    Raises:
        OSError: if the file is not there or must not be read.
        ValueError: if it is not.
    """
    with open(path, "rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
        if not is_zip and not zipfile.is_zipfile(file):  # of torch before 1.6, or not of torch
            return
        try:
            if not is_zip:  # torch would take it for an old file
                raise zipfile.BadZipFile("changed at its beginning")
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    is_header = not re.search(r"/\.?data/", entry.filename)
                    if is_header and entry.CRC:  # 0 where torch was told to compute none
                        archive.read(entry)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
            raise ValueError(f"{path} is cut short, or its header is damaged") from error


def updates(state: Mapping[str, Any]) -> int:
    """How long the training run had gone on."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates", 0)


def higher_is_better(state: Mapping[str, Any]) -> bool:
    """Whether the training run looked for a high score, such as BLEU, or a low one."""
    cfg, name = state.get("cfg"), "maximize_best_checkpoint_metric"
    return bool(cfg["checkpoint"].get(name) if cfg else getattr(state.get("args"), name, False))


# --- finding --------------------------------------------------------------------------------------


def last(folder: Path, unit: str, number: int, upper_bound: int | None = None) -> list[Path]:
    """The last checkpoints written after an "epoch" or "update", oldest first.

    Raises:
        ValueError: if there are fewer, naming those there are.
    """
    matches = ((re.fullmatch(NUMBERED[unit], path.name), path) for path in folder.iterdir())
    numbered = sorted((int(match[1]), path) for match, path in matches if match)
    found = [path for i, path in numbered if upper_bound is None or i <= upper_bound]
    if len(found) < number:
        bound = "" if upper_bound is None else f" up to {upper_bound}"
        others = "" if found else f" among {_names(sorted(folder.glob('*.pt')))}"
        raise ValueError(
            f"{folder}: {number} {unit} checkpoints{bound} asked for, found {_names(found)}{others}"
        )
    return found[-number:]


def scored(folder: Path) -> list[Path]:
    """All checkpoints that have a score in their name."""
    return sorted(path for path in folder.iterdir() if re.fullmatch(SCORED, path.name))


def best(paths: Sequence[Path], number: int) -> list[Path]:
    """The best by the scores in their names, best first.

    Raises:
        ValueError: if there are fewer, or their names tell no score, or those of two metrics.
    """
    if len(paths) < number:
        raise ValueError(f"{number} checkpoints with a score asked for, found {_names(paths)}")
    matches = {path: re.fullmatch(SCORED, path.name) for path in paths}
    for path, match in matches.items():
        if not match:
            raise ValueError(f"{path} has no score in its name, as checkpoint.best_loss_3.21.pt")
    metrics = sorted({match[1] for match in matches.values()})
    if len(metrics) > 1:
        raise ValueError(f"scores of {' and '.join(metrics)} do not compare: name the files of one")
    descending = higher_is_better(read(paths[0]))
    return sorted(paths, key=lambda path: float(matches[path][2]), reverse=descending)[:number]


def _names(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    if len(names) > 8:
        names = [*names[:3], f"... {len(names)} in all ...", names[-1]]
    return ", ".join(names) or "none"
