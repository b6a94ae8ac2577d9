"""What a checkpoint says about its model, in each of the forms in which fairseq has written it."""

from argparse import Namespace
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from omegaconf import OmegaConf, open_dict


def model_config(state: Mapping[str, Any]) -> Any:
    """What a checkpoint says about its model: a Namespace, a dict or an omegaconf container."""
    cfg = state.get("cfg")
    return state["args"] if cfg is None else cfg["model"]


def entries_of(cfg: Any) -> MutableMapping[str, Any]:
    return vars(cfg) if isinstance(cfg, Namespace) else cfg


def writable(cfg: Any) -> AbstractContextManager:
    return open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext()


def drop_optimizer_(state: dict[str, Any]) -> None:
    """Leave what fairseq-train writes under --no-save-optimizer-state."""
    state.pop("last_optimizer_state", None)
    if "optimizer_history" in state:
        history = [dict(entry) for entry in state["optimizer_history"]]
        for entry in history:
            entry.pop("optimizer", None)  # where versions of 2018 kept it
        state["optimizer_history"] = history
