"""What each kind of module costs; a new kind of module is one new rule in `RULES`.

A rule gets a module and its place, and returns Mult-Adds without convolution taps, and taps. It
stands for the whole module: what is inside is not looked at again. `counting.py` says what counts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fairseq.models import FairseqDecoder, FairseqEncoder
from fairseq.models.roberta.model import RobertaLMHead
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax, MultiheadAttention
from fairseq.modules.adaptive_softmax import TiedLinear
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC, DynamicConv_scripatable
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from torch import nn

from ..modules.depthwise_convolution import DynamicConvolution, LightweightConvolution
from ..modules.pruned_attention import HeadlessAttention

# What fairseq's models call the parts of a layer; the innermost name decides.
PART_OF_NAME = {
    "embed_tokens": "embeddings",
    "embed_positions": "embeddings",
    "layernorm_embedding": "embeddings",
    "emb_layer_norm": "embeddings",
    "project_in_dim": "embeddings",
    "self_attn": "attention",
    "encoder_attn": "cross-attention",
    "convolution": "convolution",
    "conv": "convolution",
    "linear1": "convolution",
    "linear2": "convolution",
    "fc1": "FFN",
    "fc2": "FFN",
    "project_out_dim": "output",
    "output_projection": "output",
    "adaptive_softmax": "output",
    "lm_head": "output",
    "classification_heads": "output",
}


@dataclass(frozen=True)
class Lengths:
    """Tokens of one sentence; a decoder-only model has a target only, an encoder a source only."""

    source: int = 30
    target: int = 30

    def __post_init__(self):
        if min(self.source, self.target) < 1:
            raise ValueError(
                f"lengths must be at least 1, not {self.source} source and {self.target} target "
                "tokens"
            )


@dataclass(frozen=True)
class Place:
    """Where in the model a module stands: its side, its part, and how many positions it sees."""

    lengths: Lengths
    side: str = "encoder"
    part: str = "other"
    queries: int = 0  # positions the module is applied to

    def inside(self, module: nn.Module) -> "Place":
        if isinstance(module, FairseqEncoder):
            return replace(self, side="encoder", queries=self.lengths.source)
        if isinstance(module, FairseqDecoder):
            return replace(self, side="decoder", queries=self.lengths.target)
        return self

    def called(self, name: str) -> "Place":
        if name == "classification_heads":  # read the first position only
            return replace(self, part="output", queries=1)
        return replace(self, part=PART_OF_NAME.get(name, self.part))


def free(module: nn.Module, place: Place) -> tuple[int, int]:
    return 0, 0


def linear(module: nn.Linear, place: Place) -> tuple[int, int]:
    return place.queries * module.weight.numel(), 0


def attention(module: MultiheadAttention, place: Place) -> tuple[int, int]:
    """Sizes are those of the weights, so heads that were removed cost nothing."""
    if module.self_attention:
        keys = place.queries
    elif module.encoder_decoder_attention:
        keys = place.lengths.source
    else:  # --cross-self-attention: source and target side by side
        keys = place.lengths.source + place.queries
    q, k, v, out = (
        p.weight for p in (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
    )
    projections = place.queries * (q.numel() + out.numel()) + keys * (k.numel() + v.numel())
    seen = keys + (module.bias_k is not None) + bool(module.add_zero_attn)
    return projections + place.queries * seen * (q.size(0) + v.size(0)), 0


def convolution(module: nn.Module, place: Place) -> tuple[int, int]:
    """Lightweight or dynamic, ours or fairseq's; a dynamic one predicts its taps linearly."""
    channels = module.channels if hasattr(module, "channels") else module.input_size
    return _matrices(module, place), place.queries * module.kernel_size * channels


def adaptive_input(module: AdaptiveInput, place: Place) -> tuple[int, int]:
    return place.queries * module.embeddings[0][1].weight.numel(), 0


def adaptive_softmax(module: AdaptiveSoftmax, place: Place) -> tuple[int, int]:
    return _matrices(module, place), 0


def masked_lm_head(module: RobertaLMHead, place: Place) -> tuple[int, int]:
    return place.queries * (module.dense.weight.numel() + module.weight.numel()), 0


def _matrices(module: nn.Module, place: Place) -> int:
    matrices = (m for m in module.modules() if isinstance(m, (nn.Linear, TiedLinear)))
    return place.queries * sum(m.weight.numel() for m in matrices)


Rule = Callable[[nn.Module, Place], tuple[int, int]]
RULES: dict[type, Rule] = {
    nn.Linear: linear,
    nn.Embedding: free,
    nn.LayerNorm: free,
    MultiheadAttention: attention,
    HeadlessAttention: free,
    LightweightConvolution: convolution,
    DynamicConvolution: convolution,
    LightweightConv1dTBC: convolution,
    DynamicConv1dTBC: convolution,
    DynamicConv_scripatable: convolution,
    AdaptiveInput: adaptive_input,
    AdaptiveSoftmax: adaptive_softmax,
    RobertaLMHead: masked_lm_head,
}
# fairseq takes these in place of its own where their CUDA extension is installed, and only there
# can they be imported
RULES_BY_NAME: dict[str, Rule] = {
    "LightconvLayer": convolution,
    "DynamicconvLayer": convolution,
    "FusedLayerNorm": free,
}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of the module's class or of the nearest of its base classes."""
    for kind in type(module).__mro__:
        rule = RULES.get(kind) or RULES_BY_NAME.get(kind.__name__)
        if rule is not None:
            return rule
    return None
