"""Models without their data: a registered architecture, or a checkpoint that lies alone.

fairseq builds a model through a task, and a task reads dictionaries from its data folder. Only
their sizes matter here: for an architecture the caller gives them, for a checkpoint the embedding
tables tell them.
"""

import argparse
import dataclasses
import difflib
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    BaseFairseqModel,
    build_model,
)
from omegaconf import DictConfig, open_dict

from . import checkpoint_files
from .compression import expand_all

SPECIAL_SYMBOLS = 4  # <s>, <pad>, </s> and <unk> head every fairseq dictionary
# What tasks and criteria would have put beside a model's own flags.
FROM_ELSEWHERE = dict(
    criterion="cross_entropy",
    max_source_positions=1024,
    max_target_positions=1024,
    tokens_per_sample=512,
    max_positions=512,
    tpu=False,
    add_bos_token=False,
)


def dictionary(words: int) -> Dictionary:
    """A dictionary of that many entries, fairseq's four special symbols among them."""
    if words <= SPECIAL_SYMBOLS:
        raise ValueError(
            f"a vocabulary of {words} is too small: it counts fairseq's {SPECIAL_SYMBOLS} special "
            f"symbols, so give at least {SPECIAL_SYMBOLS + 1}"
        )
    entries = Dictionary()
    for i in range(words - SPECIAL_SYMBOLS):
        entries.add_symbol(f"word{i}")
    return entries


def task_of(source: int, target: int) -> SimpleNamespace:
    """What a model's `build_model` reads of a task: dictionaries of these sizes."""
    source_dictionary = dictionary(source)
    return SimpleNamespace(
        source_dictionary=source_dictionary,
        dictionary=source_dictionary,
        # equal ones may be shared between encoder and decoder
        target_dictionary=source_dictionary if source == target else dictionary(target),
    )


# --- architectures --------------------------------------------------------------------------------


def arguments(arch: str, flags: Sequence[str] = ()) -> Namespace:
    """Everything fairseq-train would hand to the model for ``--arch ARCH`` and these model flags.

    Raises:
        ValueError: for an unknown architecture, naming similar ones, or an unknown flag.
    """
    if arch not in ARCH_MODEL_REGISTRY:
        near = difflib.get_close_matches(arch, ARCH_MODEL_REGISTRY, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "is its plugin given by --user-dir?"
        raise ValueError(f"unknown architecture {arch!r}: {hint}")
    parser = _ModelFlags(allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = Namespace(**FROM_ELSEWHERE)
    parser.parse_args(list(flags), args)
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    _fill_in_defaults(args)
    return args


def _fill_in_defaults(args: Namespace) -> None:
    """What a model's dataclass says, but for values that interpolate other configurations."""
    kind = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY[args.arch])
    for field in dataclasses.fields(kind) if kind else ():
        is_plain = isinstance(field.default, (int, float, type(None)))
        if is_plain and not field.name.startswith("_") and not hasattr(args, field.name):
            setattr(args, field.name, field.default)


class _ModelFlags(argparse.ArgumentParser):
    def error(self, message: str):
        raise ValueError(f"{message} (neither of this command nor of the architecture)")


def architecture(
    arch: str, vocabulary: int, flags: Sequence[str] = (), weights: bool = True
) -> BaseFairseqModel:
    """A registered architecture with random weights, or with none when only sizes are of interest.

    Raises:
        ValueError: for an unknown architecture or flag, or sizes that do not fit together.
    """
    return from_arguments(arguments(arch, flags), vocabulary, weights)


def from_arguments(args: Namespace, vocabulary: int, weights: bool = True) -> BaseFairseqModel:
    """The model of what `arguments` returned."""
    task = task_of(vocabulary, vocabulary)
    with nullcontext() if weights else torch.device("meta"):
        try:
            return _build(args, task)
        except NotImplementedError:  # an initialisation that insists on real memory
            if weights:
                raise
    return _build(args, task)


def _build(args: Namespace, task: SimpleNamespace) -> BaseFairseqModel:
    try:
        return build_model(Namespace(**vars(args)), task)
    except NotImplementedError:
        raise
    except Exception as error:  # whatever a model's own checks raise, assertions included
        size = len(task.source_dictionary)
        raise ValueError(
            f"cannot build {args.arch} with a vocabulary of {size}: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """The message of an error, or its kind if it has none, on a single line."""
    return " ".join(str(error).split()) or type(error).__name__


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(path: str | Path) -> tuple[BaseFairseqModel, dict]:
    """The model in a fairseq checkpoint, and the whole checkpoint as fairseq loads it.

    torch's safe loader stays on: a file cannot run code.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a fairseq checkpoint, or its model does not fit its description.
    """
    state = _read(Path(path))
    cfg = state.get("cfg") or convert_namespace_to_omegaconf(state["args"])
    if cfg.model is None:
        raise ValueError(f"{path} does not say which model it holds")
    for side in ("encoder", "decoder"):  # pretrained embeddings are in the checkpoint by now
        _set(cfg.model, f"{side}_embed_path", None)
    tensors = expand_all(state["model"])
    if any(key.startswith("classification_heads.") for key in tensors):
        _set(cfg.model, "load_checkpoint_heads", True)  # a task would have registered them
    name = getattr(cfg.model, "_name", None)
    try:
        model = build_model(cfg.model, task_of(*vocabularies(tensors)), from_checkpoint=True)
        model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    except Exception as error:
        raise ValueError(f"cannot rebuild the {name} of {path}: {one_line(error)}") from error
    return model, state


def _set(cfg: DictConfig | Namespace, name: str, value: object) -> None:
    with nullcontext() if isinstance(cfg, Namespace) else open_dict(cfg):
        setattr(cfg, name, value)


def _read(path: Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is {'a folder' if path.is_dir() else 'not there'}: "
            "give the path of a checkpoint file, such as checkpoint_best.pt"
        )
    checkpoint_files.read(path)  # says what is wrong where fairseq's loader only fails
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a fairseq checkpoint of a model") from error
    if not (state.get("cfg") or state.get("args")):
        raise ValueError(f"{path} is not a fairseq checkpoint: it has no configuration")
    return state


def vocabularies(state_dict: dict[str, torch.Tensor]) -> tuple[int, int]:
    """Source and target dictionary sizes, from the rows of the embedding tables.

    Raises:
        ValueError: if there is no embedding table.
    """
    rows: dict[str, int] = {}
    for name, tensor in state_dict.items():
        owner, found, rest = name.partition("embed_tokens.")
        # one table, or the first member of every band of an adaptive input
        is_table = rest == "weight" or (
            rest.startswith("embeddings.") and rest.endswith(".0.weight")
        )
        if found and is_table:
            rows[owner] = rows.get(owner, 0) + tensor.size(0)
    if not rows:
        raise ValueError("no word embeddings in it")
    source = next((n for owner, n in rows.items() if "encoder" in owner), None)
    target = next((n for owner, n in rows.items() if "decoder" in owner), source)
    return source or target, target
