"""Take heads out of the weights (Michel et al. 2019, section 4: pruned heads need not be computed).

What a model without a head computes is what it computes while the head is masked. Head h of an
attention module, of D channels, owns the channels h * D to (h + 1) * D between the projections:
rows of the query, key and value projection, columns of the output projection.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..modules.pruned_attention import HeadlessAttention, PrunedSelfAttention
from .names import Attention, Head, attentions, check_heads

# Along which dimension the channels of the heads lie; a bias of the output belongs to no head.
HEADS_LIE_ALONG = {
    "q_proj.weight": 0,
    "k_proj.weight": 0,
    "v_proj.weight": 0,
    "q_proj.bias": 0,
    "k_proj.bias": 0,
    "v_proj.bias": 0,
    "out_proj.weight": 1,
}


def remove_heads_(model: nn.Module, heads: Iterable[Head]) -> None:
    """Remove heads from a model, in place; the other heads keep their order and their names.

    Parameters of attention modules that lose heads are new ones, so an optimizer is to be made
    anew. A module that loses its last head becomes a `HeadlessAttention`, and fairseq's
    self-attention a `PrunedSelfAttention`, which is faster.

    Raises:
        ValueError: if the model has not all of these heads, if gates are set on their modules,
            or if these have learned keys. Nothing is removed then.
    """
    losing = _losing(model, heads)
    for path, attention, _ in losing:
        if hasattr(attention.module, "gated"):
            raise ValueError(f"{path}: take its gates or masks away before removing heads")
        if getattr(attention.module, "bias_k", None) is not None:
            raise ValueError(f"{path} has learned keys (add_bias_kv), and so cannot lose heads")
    for path, attention, kept in losing:
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, _without(attention, kept))


def shrink_tensors(
    tensors: Mapping[str, Any], heads: Iterable[Head], model: nn.Module
) -> dict[str, Any]:
    """The entries of a state dict of ``model``, which stays as it is, without these heads.

    What belongs to other modules is passed on as it is. All tensors keep their precision. Names
    of older versions of fairseq are brought up to date where heads are hidden behind them.

    Raises:
        ValueError: if model or entries have not all of these heads.
    """
    shrunk, losing = dict(tensors), _losing(model, heads)
    if not all(f"{path}.q_proj.weight" in shrunk for path, _, _ in losing):
        model.upgrade_state_dict(shrunk)
    for path, attention, kept in losing:
        channels = _channels(attention, kept)
        rows = shrunk.get(f"{path}.q_proj.weight", torch.empty(0, 0)).size(0)
        if rows != len(attention.heads) * attention.module.head_dim:
            raise ValueError(f"{path}: {rows} rows of queries, which are not those of this model")
        for name, dim in HEADS_LIE_ALONG.items():
            tensor = shrunk.pop(f"{path}.{name}", None)
            if kept and tensor is not None:
                shrunk[f"{path}.{name}"] = tensor.index_select(dim, channels.to(tensor.device))
    return shrunk


def _losing(model: nn.Module, heads: Iterable[Head]) -> list[tuple[str, Attention, list[int]]]:
    """Modules that lose heads: where they are in the model, and which heads they keep."""
    gone = set(heads)
    check_heads(model, gone)
    paths = {module: path for path, module in model.named_modules()}
    found = []
    for attention in attentions(model):
        kept = [name.head for name in attention.names() if name not in gone]
        if len(kept) < len(attention.heads):
            found.append((paths[attention.module], attention, kept))
    return found


def _channels(attention: Attention, kept: list[int]) -> Tensor:
    """Numbers of the channels of these heads, given by the names they had at first."""
    channels = torch.arange(len(attention.heads) * attention.module.head_dim)
    places = [attention.heads.index(head) for head in kept]
    return channels.view(len(attention.heads), -1)[places].flatten()


def _without(attention: Attention, kept: list[int]) -> nn.Module:
    """What takes the place of an attention module that keeps only these heads."""
    module = attention.module
    if not kept:
        return HeadlessAttention(module).train(module.training)
    _shrink_(module, _channels(attention, kept))
    if PrunedSelfAttention.fits(module):
        module = PrunedSelfAttention.of(module)
    module.heads_left = tuple(kept)
    if getattr(module, "fused_weight", None) is not None:
        module.make_generation_fast_()
    return module


def _shrink_(module: nn.Module, channels: Tensor) -> None:
    for name, dim in HEADS_LIE_ALONG.items():
        owner, _, attribute = name.rpartition(".")
        part = module.get_submodule(owner)
        old = getattr(part, attribute)
        if old is not None:
            new = old.detach().index_select(dim, channels.to(old.device))
            setattr(part, attribute, nn.Parameter(new, requires_grad=old.requires_grad))
    for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
        projection.out_features, projection.in_features = projection.weight.size()
    module.embed_dim = len(channels)
    module.num_heads = len(channels) // module.head_dim
    module.skip_embed_dim_check = True  # the inputs are wider than the heads are together
