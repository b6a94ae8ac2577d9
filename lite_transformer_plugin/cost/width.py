"""The embedding size at which an architecture meets a budget of Mult-Adds."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, sqrt

from fairseq.modules import MultiheadAttention
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC, DynamicConv_scripatable
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from torch import nn

from .. import build
from ..modules.depthwise_convolution import DepthwiseConvolution
from .counting import Cost, count
from .rules import Lengths

# Flags that grow with the embedding size, so that an architecture keeps its proportions.
WIDTHS = tuple(
    f"{side}_{name}"
    for side in ("encoder", "decoder")
    for name in (
        "embed_dim",
        "ffn_embed_dim",
        "input_dim",
        "output_dim",
        "attention_dim",
        "conv_dim",
    )
)
LARGEST = 1 << 16
FAIRSEQ_CONVOLUTIONS = (LightweightConv1dTBC, DynamicConv1dTBC, DynamicConv_scripatable)


@dataclass(frozen=True)
class Width:
    """An embedding size, what it costs, and the flags that give it to fairseq-train."""

    embed_dim: int
    flags: dict[str, int]
    cost: Cost


class Family:
    """One architecture at any width that its heads divide."""

    def __init__(
        self,
        arch: str,
        vocabulary: int,
        flags: Sequence[str] = (),
        lengths: Lengths | None = None,
        convention: str = "paper",
        taps: bool = True,
    ):
        self.args = build.arguments(arch, flags)
        self.vocabulary = vocabulary
        self.built: dict[int, Width] = {}
        self.how = (lengths or Lengths(), convention, taps)
        self.sizes = {
            name: getattr(self.args, name)
            for name in WIDTHS
            if isinstance(getattr(self.args, name, None), int)
        }
        first = "encoder_embed_dim" if "encoder_embed_dim" in self.sizes else "decoder_embed_dim"
        if first not in self.sizes:
            raise ValueError(f"{arch} has no embedding size to vary")
        self.embed_dim = self.sizes[first]
        model = build.from_arguments(self.args, vocabulary, weights=False)
        self.step = lcm(width_step(model, self.embed_dim), *map(self._whole, self.sizes.values()))

    def _whole(self, size: int) -> int:
        # the smallest width of which size / embed_dim is a whole number
        return self.embed_dim // gcd(self.embed_dim, size)

    def at(self, embed_dim: int) -> Width:
        """The model of that width, which must be a multiple of ``step``."""
        if embed_dim not in self.built:
            flags = {name: size * embed_dim // self.embed_dim for name, size in self.sizes.items()}
            args = Namespace(**{**vars(self.args), **flags})
            model = build.from_arguments(args, self.vocabulary, weights=False)
            self.built[embed_dim] = Width(embed_dim, flags, count(model, *self.how))
        return self.built[embed_dim]

    def command_line(self, width: Width) -> list[str]:
        """The flags of a width that the architecture has; it derives the others from them."""
        words = []
        for name, value in width.flags.items():
            flag = [f"--{name.replace('_', '-')}", str(value)]
            try:
                build.arguments(self.args.arch, flag)
            except ValueError:
                continue
            words += flag
        return words


def width_step(model: nn.Module, embed_dim: int) -> int:
    """The numbers that every module's heads still divide when all widths scale alike."""
    step = 1
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            channels, heads = module.embed_dim, module.num_heads
        elif isinstance(module, DepthwiseConvolution):
            channels, heads = module.channels, module.heads
        elif isinstance(module, FAIRSEQ_CONVOLUTIONS):
            channels, heads = module.input_size, module.num_heads
        else:
            continue
        # width * channels / embed_dim must be whole and divisible by heads
        common = gcd(channels, embed_dim)
        step = lcm(step, embed_dim // common * (heads // gcd(channels // common, heads)))
    return step


def find_width(family: Family, budget: int) -> tuple[Width, Width]:
    """The width nearest to ``budget`` Mult-Adds, and the widest within it (often the same).

    Raises:
        ValueError: if even the narrowest costs more, or no width in reach costs as much.
    """
    narrowest, *others = (family.at(steps * family.step).cost.mult_adds for steps in (1, 2, 3))
    if narrowest > budget:
        raise ValueError(
            f"no width of {family.args.arch} meets {budget:,} Mult-Adds: the narrowest, "
            f"{family.step}, costs {narrowest:,}"
        )
    steps = _root(narrowest, *others, budget)
    if steps * family.step > LARGEST:
        raise ValueError(
            f"{budget:,} Mult-Adds are more than {family.args.arch} costs at any width up to "
            f"{LARGEST}"
        )
    # the parabola is exact but where a module rounds its own sizes
    while steps > 1 and family.at(steps * family.step).cost.mult_adds > budget:
        steps -= 1
    while family.at((steps + 1) * family.step).cost.mult_adds <= budget:
        steps += 1
    within, above = family.at(steps * family.step), family.at((steps + 1) * family.step)
    over, under = above.cost.mult_adds - budget, budget - within.cost.mult_adds
    return (above if over < under else within), within


def _root(at_1: int, at_2: int, at_3: int, value: int) -> int:
    """Where the parabola through three points, at 1, 2 and 3, reaches ``value``; at least 1."""
    a = (at_3 - 2 * at_2 + at_1) / 2
    b = at_2 - at_1 - 3 * a
    c = at_1 - a - b - value
    root = (sqrt(b * b - 4 * a * c) - b) / (2 * a) if a > 0 else -c / b
    return max(1, int(root))
