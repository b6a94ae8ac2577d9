"""Tiny models in Hugging Face's format on disk, and what they compute by the published formulas."""

import json
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

TEXTS = ["The cat sat on the mat, unbelievably!", "A dog; naïve 漢字 words."]
CHANNELS, HEADS, LAYERS, HIDDEN, POSITIONS = 8, 2, 2, 12, 40
EPS = {"bert": 1e-2, "roberta": 1e-5}  # BERT's own would not show in float32
PIECES = "the cat sat on mat a dog un ##believ ##ably naive words , . ; ! 漢".split()
WORD_PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make(folder: Path, kind: str, prefix: str = "", **config) -> Path:
    """config.json, model.safetensors and the files of a tokeniser of "bert" or "roberta"."""
    folder.mkdir(parents=True, exist_ok=True)
    words = len(write_tokenizer(folder, kind).get_vocab())
    settings = {
        "model_type": kind,
        "num_hidden_layers": LAYERS,
        "hidden_size": CHANNELS,
        "intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS + (2 if kind == "roberta" else 0),
        "type_vocab_size": 2 if kind == "bert" else 1,
        "layer_norm_eps": EPS[kind],
        "vocab_size": words,
    }
    (folder / "config.json").write_text(json.dumps(settings | config))
    tensors = random_weights(settings, words)
    save_file({prefix + name: x for name, x in tensors.items()}, folder / "model.safetensors")
    return folder


def write_tokenizer(folder: Path, kind: str):
    """Its parts, and the library's own tokeniser of them."""
    if kind == "bert":
        (folder / "vocab.txt").write_text("\n".join(WORD_PIECES) + "\n", encoding="utf-8")
    else:
        trained = tokenizers.ByteLevelBPETokenizer()
        trained.train_from_iterator(TEXTS * 2, 290, special_tokens=SYMBOLS, show_progress=False)
        trained.save_model(str(folder))
    return library_tokenizer(folder, kind)


def library_tokenizer(folder: Path, kind: str):
    """What the library makes of the parts, with the layout of pairs of that kind of model."""
    if kind == "bert":
        return tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"))
    tokenizer = tokenizers.ByteLevelBPETokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt")
    )
    tokenizer._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def random_weights(config: dict, words: int) -> dict[str, Tensor]:
    channels, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (words, channels),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], channels),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], channels),
        "pooler.dense.weight": (channels, channels),
        "pooler.dense.bias": (channels,),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        sizes = {f"attention.self.{name}": (channels, channels) for name in ("query", "key")}
        sizes |= {"attention.self.value": (channels, channels)}
        sizes |= {"attention.output.dense": (channels, channels)}
        sizes |= {"intermediate.dense": (hidden, channels), "output.dense": (channels, hidden)}
        for name, (rows, columns) in sizes.items():
            shapes[f"{layer}{name}.weight"], shapes[f"{layer}{name}.bias"] = (
                (rows, columns),
                (rows,),
            )
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    shapes |= {f"{name}.{part}": (channels,) for name in norms for part in ("weight", "bias")}
    generator = torch.Generator().manual_seed(0)
    return {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


# --- the reference --------------------------------------------------------------------------------


def reference(folder: Path, kind: str, ids: list[int], types: list[int]) -> tuple[Tensor, Tensor]:
    """Last hidden states (T, C) and pooled first one (C), as Devlin et al. 2019 describe them."""
    w = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True) + config["layer_norm_eps"]
        return w[f"{name}.weight"] * centred / variance.sqrt() + w[f"{name}.bias"]

    first = 2 if kind == "roberta" else 0  # RoBERTa's padding takes row 1 of its positions
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][first : first + len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    heads, depth = config["num_attention_heads"], x.size(1) // config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{layer}attention.self.{name}").view(len(ids), heads, depth).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        weights = (q @ k.transpose(1, 2) / depth**0.5).softmax(dim=-1)
        attended = (weights @ v).transpose(0, 1).reshape(len(ids), -1)
        attended = linear(attended, f"{layer}attention.output.dense")
        x = norm(x + attended, f"{layer}attention.output.LayerNorm")
        inner = F.gelu(linear(x, f"{layer}intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}output.dense"), f"{layer}output.LayerNorm")
    return x, torch.tanh(linear(x[0], "pooler.dense"))
