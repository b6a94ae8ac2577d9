"""The tensors of a BERT or RoBERTa encoder, under the names that fairseq gives them."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

SENTENCE = "encoder.sentence_encoder."
HEAD = "classification_heads.sentence_classification_head."
NAMES = {  # Hugging Face's, as patterns; the last names are RoBERTa's
    r"embeddings\.word_embeddings": SENTENCE + "embed_tokens",
    r"embeddings\.position_embeddings": SENTENCE + "embed_positions",
    r"embeddings\.token_type_embeddings": SENTENCE + "embed_segments",
    r"embeddings\.LayerNorm": SENTENCE + "layernorm_embedding",
    r"encoder\.layer\.(\d+)\.attention\.self\.query": SENTENCE + r"layers.\1.self_attn.q_proj",
    r"encoder\.layer\.(\d+)\.attention\.self\.key": SENTENCE + r"layers.\1.self_attn.k_proj",
    r"encoder\.layer\.(\d+)\.attention\.self\.value": SENTENCE + r"layers.\1.self_attn.v_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": SENTENCE + r"layers.\1.self_attn.out_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm": SENTENCE
    + r"layers.\1.self_attn_layer_norm",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": SENTENCE + r"layers.\1.fc1",
    r"encoder\.layer\.(\d+)\.output\.dense": SENTENCE + r"layers.\1.fc2",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm": SENTENCE + r"layers.\1.final_layer_norm",
    r"cls\.predictions\.transform\.dense|lm_head\.dense": "encoder.lm_head.dense",
    r"cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm": "encoder.lm_head.layer_norm",
    r"cls\.predictions\.decoder|lm_head\.decoder": "encoder.lm_head",
    r"cls\.predictions|lm_head": "encoder.lm_head",  # the bias stands alone
    r"pooler\.dense|classifier\.dense": HEAD + "dense",
    r"classifier|classifier\.out_proj": HEAD + "out_proj",
}
OLDER = {"gamma": "weight", "beta": "bias"}  # in layer norms of 2018
IGNORED = r".*position_ids|cls\.seq_relationship\..*"  # numbers 0, 1, ..; the next sentence


def rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by their names in fairseq's model, in float32.

    Raises:
        ValueError: for a tensor that is no part of such an encoder.
    """
    renamed = {}
    # the dense layer of a classifier takes the place of a pooler's
    for key in sorted(tensors, key=lambda key: "pooler" not in key):
        name = re.sub(r"^(bert|roberta)\.", "", key)
        if re.fullmatch(IGNORED, name):
            continue
        owner, _, last = name.rpartition(".")
        new = _new_name(owner)
        if new is None:
            raise ValueError(f"its weight {name} belongs to no BERT or RoBERTa encoder")
        renamed[f"{new}.{OLDER.get(last, last)}"] = tensors[key].float()
    return renamed


def _new_name(owner: str) -> str | None:
    for pattern, new in NAMES.items():
        match = re.fullmatch(pattern, owner)
        if match:
            return match.expand(new)
    return None


def reorder_(tensors: dict[str, Tensor], ids: Sequence[int], kind: str) -> None:
    """Put the rows of words in the dictionary's order, and those of positions where fairseq looks.

    Args:
        ids: of the dictionary's entries in the tokeniser.
        kind: "bert", whose first position is row 0, or "roberta", where it is row 2 as in fairseq.

    Raises:
        ValueError: if a word has no row.
    """
    words = tensors[SENTENCE + "embed_tokens.weight"]
    if max(ids) >= len(words):
        raise ValueError(
            f"its tokeniser has an entry {max(ids)}, its table of words {len(words)} rows: they "
            "belong to different models"
        )
    for name in (
        SENTENCE + "embed_tokens.weight",
        "encoder.lm_head.weight",
        "encoder.lm_head.bias",
    ):
        if name in tensors:
            tensors[name] = tensors[name][torch.as_tensor(ids)]
    if kind == "bert":
        name = SENTENCE + "embed_positions.weight"
        first = torch.zeros(2, tensors[name].size(1))  # as the row of padding
        tensors[name] = torch.cat([first, tensors[name]])
