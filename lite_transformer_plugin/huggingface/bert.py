"""Hugging Face's BERT or RoBERTa encoder as a fairseq checkpoint of the architecture `bert`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from omegaconf import OmegaConf

from .folder import flags, read_config, read_weights
from .tokenizer import dictionary_of, find
from .weights import HEAD, SENTENCE, rename, reorder_

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DENSE, CLASSES = HEAD + "dense.weight", HEAD + "out_proj.weight"


class Imported(NamedTuple):
    """All that a model needs in fairseq."""

    state: dict[str, Any]  # the checkpoint, for torch.save
    dictionary: Dictionary  # with <mask>, which the tasks add
    tokenizer: "Tokenizer"
    flags: list[str]  # of fairseq-train, for a model of that size
    layout: list[str]  # of --task sentence_prediction, for single sentences and pairs
    fresh: list[str]  # weights that the folder has not: random


def import_bert(folder: str | Path, num_classes: int | None = None, seed: int = 1) -> Imported:
    """Read a folder of Hugging Face's.

    Args:
        num_classes: give the model a classification head, the pooler with a random last layer; a
            classifier in the folder is taken as it is.
        seed: of what is random, when the folder lacks it.

    Raises:
        OSError: if a file is missing.
        ValueError: if the folder is not supported, or its parts do not fit together.
    """
    folder = Path(folder)
    config = read_config(folder)
    kind = config["model_type"]
    tokenizer = find(folder, kind)
    dictionary, ids = dictionary_of(tokenizer, kind)
    words = ["--arch", "bert", *flags(config)]
    args = _arguments(words)
    try:
        tensors = rename(read_weights(folder))
        _complete(tensors, args)
        reorder_(tensors, ids, kind)
        if CLASSES not in tensors and (num_classes is None or DENSE not in tensors):
            tensors = {name: x for name, x in tensors.items() if not name.startswith(HEAD)}
        state, fresh = _checkpoint(args, tensors, dictionary, num_classes, seed)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    layout = ["--init-token", str(dictionary.bos())]
    if kind == "roberta":
        layout += ["--separator-token", str(dictionary.eos())]
    return Imported(state, dictionary, tokenizer, words, layout, fresh)


def _arguments(words: Sequence[str]):
    parser = options.get_training_parser(default_task="masked_lm")
    args = options.parse_args_and_arch(parser, ["data", *words])
    args.tokens_per_sample = args.max_positions
    return args


def _complete(tensors: dict[str, torch.Tensor], args: Any) -> None:
    """See to what differs between models of one kind: segments unused, words tied or not."""
    words, output = SENTENCE + "embed_tokens.weight", "encoder.lm_head.weight"
    if words not in tensors:
        raise ValueError("it has no word embeddings: its weights are of another kind of model")
    segments = SENTENCE + "embed_segments.weight"
    if segments in tensors:
        tensors[segments] = tensors[segments][: args.segments]
    untied = output in tensors and not torch.equal(tensors[output], tensors[words])
    args.untie_weights_roberta = untied
    if not untied:
        tensors[output] = tensors[words]


def _checkpoint(
    args: Any,
    tensors: dict[str, torch.Tensor],
    dictionary: Dictionary,
    num_classes: int | None,
    seed: int,
) -> tuple[dict[str, Any], list[str]]:
    """A model of these tensors, as fairseq-train saves one, and what of it is random."""
    if CLASSES in tensors:
        num_classes = len(tensors[CLASSES])
    cfg = convert_namespace_to_omegaconf(args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(cfg.model, SimpleNamespace(source_dictionary=dictionary))
        if num_classes is not None and DENSE in tensors:
            model.register_classification_head("sentence_classification_head", num_classes)
    fresh = _check_fit(model.state_dict(), tensors)
    model_state = model.state_dict() | tensors
    if not args.untie_weights_roberta:  # one tensor, in the file too
        model_state["encoder.lm_head.weight"] = model_state[SENTENCE + "embed_tokens.weight"]
    history = {
        "criterion_name": "MaskedLmLoss",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model_state,
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    return state, fresh


def _check_fit(model: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """See that the tensors fill a model; returns the names that only the model has.

    Raises:
        ValueError: naming a tensor that is missing, too many or of another size.
    """
    for name, tensor in tensors.items():
        if name not in model:
            raise ValueError(f"its config.json has no place for the weight {name}")
        if model[name].shape != tensor.shape:
            raise ValueError(
                f"the weight {name} has the shape {tuple(tensor.shape)}, by its config.json it "
                f"should have {tuple(model[name].shape)}"
            )
    fresh = [name for name in model if name not in tensors and not name.endswith(".version")]
    for name in fresh:
        if not name.startswith(("encoder.lm_head.", HEAD + "out_proj.")):
            raise ValueError(f"it lacks the weight {name}")
    return fresh
