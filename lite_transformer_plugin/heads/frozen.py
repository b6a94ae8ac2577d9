"""A model for passes whose gradients are of its activations alone, without dropout."""

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Frozen:
    """``with Frozen(model, criterion):`` can be entered again and again, for one pass or many.

    Afterwards everything is as before, also after an exception: modes, flags and ``.grad``.
    """

    def __init__(self, *roots: nn.Module):
        self.modules = [module for root in roots for module in root.modules()]
        self.weights = [weight for root in roots for weight in root.parameters()]

    def __enter__(self) -> None:
        self.modes = [module.training for module in self.modules]
        self.thawed = [weight for weight in self.weights if weight.requires_grad]
        # left by a beam search: it is told there once, and reads batches of one hypothesis wrongly
        self.beams = {m: m.beam_size for m in self.modules if getattr(m, "beam_size", 1) > 1}
        for module in self.beams:
            module.beam_size = 1
        self.hooks = [hook for module in self.modules for hook in _hooks(module)]
        self._set_modes([False] * len(self.modules))
        for weight in self.thawed:
            weight.requires_grad_(False)

    def __exit__(self, *error: object) -> None:
        for weight in self.thawed:
            weight.requires_grad_(True)
        for hook in self.hooks:
            hook.remove()
        for module, size in self.beams.items():
            module.beam_size = size
        self._set_modes(self.modes)

    def _set_modes(self, modes: list[bool]) -> None:
        for module, mode in zip(self.modules, modes, strict=True):  # parents before children
            if module.training != mode:
                module.train(mode)


def _hooks(module: nn.Module) -> list[RemovableHandle]:
    hooks = []
    if isinstance(module, nn.Linear):
        hooks.append(module.register_forward_pre_hook(_contiguous))
    if hasattr(module, "precheckpoint_forward"):  # fairseq's activation checkpointing
        hooks.append(module.register_forward_pre_hook(_require_gradient))
    return hooks


def _contiguous(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """By a frozen weight torch multiplies a transposed batch sentence for sentence: slower."""
    return tuple(x.contiguous() for x in args)


def _require_gradient(module: nn.Module, args: tuple) -> tuple:
    """A checkpointed layer passes no gradient to what is inside unless an input wants one."""
    x = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
    return (x, *args[1:])
