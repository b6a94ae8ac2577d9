"""A model in Hugging Face's format on disk: config.json and weights, read without running code."""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SUPPORTED = "supported are BERT and RoBERTa encoders (model_type bert or roberta)"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "relu": "relu", "tanh": "tanh"}
NOT_SENTENCES = ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
)


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says, checked.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: naming all that is not supported.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json: {SUPPORTED}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    wrong = unsupported(config) if isinstance(config, dict) else ["no settings"]
    if wrong:
        raise ValueError(f"{folder} has {', '.join(wrong)}: {SUPPORTED}")
    return config


def unsupported(config: dict[str, Any]) -> list[str]:
    """What of a configuration is not supported, as words after "has"."""
    kind = config.get("model_type")
    if kind not in ("bert", "roberta"):
        return [f"model_type {kind!r}"]
    wrong = [f"no {name}" for name in NEEDED if name not in config]
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        wrong.append(f"hidden_act {config['hidden_act']!r}")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        wrong.append(f"position_embedding_type {positions!r}")
    if kind == "bert" and config.get("type_vocab_size", 2) != 2:
        wrong.append(f"type_vocab_size {config['type_vocab_size']}")
    wrong += [name for name in ("is_decoder", "add_cross_attention") if config.get(name)]
    classes = [name for name in config.get("architectures") or () if name.endswith(NOT_SENTENCES)]
    return wrong + [f"architecture {name}" for name in classes]


def flags(config: dict[str, Any]) -> list[str]:
    """The words that make a model of that size of ``fairseq-train --arch bert``."""
    roberta = config["model_type"] == "roberta"  # of its positions, padding takes two
    settings = {
        "encoder-layers": config["num_hidden_layers"],
        "encoder-embed-dim": config["hidden_size"],
        "encoder-ffn-embed-dim": config["intermediate_size"],
        "encoder-attention-heads": config["num_attention_heads"],
        "max-positions": config["max_position_embeddings"] - (2 if roberta else 0),
        "segments": 1 if roberta else 2,
        "layer-norm-eps": config.get("layer_norm_eps", 1e-12),
        "activation-fn": ACTIVATIONS[config.get("hidden_act", "gelu")],
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention-dropout": config.get("attention_probs_dropout_prob", 0.1),
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors by name.

    Raises:
        FileNotFoundError: if there is none of the files we know.
        ValueError: for a file that is cut short, or holds more than tensors.
    """
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither {' nor '.join(WEIGHTS)} (in one piece)")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is cut short, or holds more than tensors") from error
    except Exception as error:  # whatever torch says depends on where the file ends
        raise ValueError(f"{path} is cut short, or not a file of weights") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path.name} needs safetensors: pip install 'lite-transformer-plugin[import]'"
        ) from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is cut short, or damaged: {error}") from error
