"""Gates that learn which heads a model needs (Voita et al. 2019, section 5).

Letters: H heads of one attention module.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from . import hard_concrete
from .closed import columns_of, restore_columns_, save_closed
from .names import Attention, Head, Place, attentions

logger = logging.getLogger(__name__)

OPEN = 2.0  # log_a at first: nine gates of ten are open, and most of them wide
SPEED = 10.0


class LearnedGates(nn.Module):
    """A hard concrete gate for each head of a model.

    A head whose gate is 0 without noise is closed. It is written into checkpoints of the model as
    a closed head; its columns are kept in the state of the gates, since the gate may open again.

    Args:
        model: its weights are not among the parameters here.
        log_a: of every gate at first.
        speed: a parameter is log_a / speed, which Adam moves by the learning rate, whatever the
            gradient. So gates learn as many times faster than weights, as in a short training
            they must.

    Raises:
        ValueError: if the model has no heads.
    """

    def __init__(self, model: nn.Module, log_a: float = OPEN, speed: float = SPEED):
        super().__init__()
        self.model = (model,)  # in a tuple, it is no part of this module
        self.speed = speed
        self.attentions = [a for a in attentions(model) if a.heads]
        if not self.attentions:
            raise ValueError(f"{type(model).__name__} has no attention heads")
        start = {_key(a): torch.full((len(a.heads),), log_a / speed) for a in self.attentions}
        self.scaled = nn.ParameterDict({key: nn.Parameter(value) for key, value in start.items()})
        save_closed(model, self.closed)
        self.register_load_state_dict_pre_hook(_fit)

    def log_a(self) -> dict[Place, Tensor]:
        """The gates' parameters in float32 at least, (H,) for each attention module."""
        found = {}
        for attention in self.attentions:
            scaled = self.scaled[_key(attention)]
            precise = torch.promote_types(scaled.dtype, torch.float)
            found[attention.place] = scaled.to(precise) * self.speed
        return found

    def draw(self) -> dict[Place, Tensor]:
        """Random gates for one pass of training, (H,) for each attention module."""
        return {place: hard_concrete.draw(log_a) for place, log_a in self.log_a().items()}

    def expected_open(self) -> Tensor:
        """How many heads of an attention module are open in training, the mean over modules."""
        sums = [hard_concrete.probability_open(log_a).sum() for log_a in self.log_a().values()]
        return torch.stack(sums).mean()

    def open(self) -> Tensor:
        """True where a head is open at test; those of all modules in a row."""
        log_a = torch.cat(list(self.log_a().values())).detach()
        return hard_concrete.without_noise(log_a) > 0

    def closed(self) -> list[Head]:
        """The heads that are closed at test, sorted."""
        names = [name for attention in self.attentions for name in attention.names()]
        return [
            name for name, is_open in zip(names, self.open().tolist(), strict=True) if not is_open
        ]

    def get_extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the parameters."""
        heads = {_key(a): list(a.heads) for a in self.attentions}
        columns = columns_of(self.model[0], self.closed())
        return {"heads": heads, "speed": self.speed, "columns": columns}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The model must have its weights by now, as fairseq's trainer sees to."""
        restore_columns_(self.model[0], state["columns"])


def _key(attention: Attention) -> str:
    return f"{attention.part}:{attention.layer}"


def _fit(gates: LearnedGates, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a state be that of the heads which the model has, and of its speed.

    Raises:
        ValueError: if the state is that of another model. It is logged, too: fairseq shows its own
            message instead.
    """
    extra = state.get(f"{prefix}_extra_state")
    if extra is None:
        return  # torch says what is missing
    for attention in gates.attentions:
        key = _key(attention)
        saved = extra["heads"].get(key, [])
        missing = [head for head in attention.names() if head.head not in saved]
        if missing:
            message = f"gates of another model: there is none for {missing[0]}"
            logger.error(message)
            raise ValueError(message)
        name = f"{prefix}scaled.{key}"
        places = [saved.index(head) for head in attention.heads]
        state[name] = state[name][places] * (extra["speed"] / gates.speed)
    kept = {f"{prefix}scaled.{_key(a)}" for a in gates.attentions}
    for name in [n for n in state if n.startswith(f"{prefix}scaled.") and n not in kept]:
        del state[name]  # a module that has lost all its heads since
