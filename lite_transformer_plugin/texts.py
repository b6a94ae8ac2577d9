"""A text as the batch that a model reads: the words of its dictionary, in its own layout.

For translation models, language models, and models of sentences and pairs.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.data import encoders
from omegaconf import DictConfig, open_dict
from torch import LongTensor, nn

from . import build, checkpoint_files
from .huggingface.tokenizer import BPE, TOKENIZER


class Reading(NamedTuple):
    """A batch of one sentence or pair, and its words."""

    sample: dict[str, Any]
    source: list[str]  # of the encoder; of the decoder where there is no encoder
    target: list[str]  # inputs of the decoder: a sentence of the target, shifted


class Reader:
    """A model that reads texts; ``pairs`` says whether it takes a second sentence itself."""

    def __init__(self, task: Any, model: nn.Module, saved: DictConfig, cfg: DictConfig):
        """
        Args:
            saved: the checkpoint's configuration.
            cfg: of fairseq-interactive, which says how text is cut into words, and how to search.
        """
        self.task, self.model, self.saved, self.cfg = task, model, saved, cfg
        self.tokenizer = encoders.build_tokenizer(cfg.tokenizer)
        self.bpe = encoders.build_bpe(cfg.bpe)
        self.translates = hasattr(model, "decoder") and hasattr(model, "encoder")
        self.pairs = hasattr(model, "classification_heads") and not self.translates

    def read(self, text: str, second: str | None = None) -> Reading:
        """The batch of a text; of its translation, ``second`` or found; of a pair with ``second``.

        Raises:
            ValueError: for a text without words, or longer than the model's positions, or a second
                one for a language model.
        """
        if self.pairs:
            tokens = self._pair(text, second)
        else:
            tokens = self._encode(text, self.task.source_dictionary)
        self._check_length(tokens, self.model.max_positions())
        sample = {"net_input": {"src_tokens": tokens[None]}, "id": torch.zeros(1).long()}
        words = self._words(tokens, self.task.source_dictionary)
        if not self.translates:
            return self._without_decoder(sample, words, second)
        sample["net_input"]["src_lengths"] = torch.tensor([len(tokens)])
        dictionary = self.task.target_dictionary
        target = self._encode(second, dictionary) if second else self._translate(sample)
        self._check_length(target, self.model.max_positions())
        shifted = target.roll(1)  # the end of sentence is what the decoder begins with
        sample["net_input"]["prev_output_tokens"] = shifted[None]
        return Reading(sample, words, self._words(shifted, dictionary))

    def _without_decoder(self, sample: dict, words: list[str], second: str | None) -> Reading:
        if self.pairs:
            return Reading(sample, words, [])
        if second:
            raise ValueError("a language model reads one text: there is no second sentence")
        tokens = sample["net_input"]["src_tokens"].roll(1, dims=1)
        sample["net_input"]["src_tokens"] = tokens
        words = self._words(tokens[0], self.task.source_dictionary)
        return Reading(sample, words, words)

    def _pair(self, text: str, second: str | None) -> LongTensor:
        """``<s> a </s> b </s>``, or ``<s> a </s></s> b </s>``, as the task or the model has it."""
        dictionary = self.task.source_dictionary
        start = getattr(self.task.cfg, "init_token", None)
        between = getattr(self.task.cfg, "separator_token", None)
        if start is None and not hasattr(self.task.cfg, "init_token"):  # masked_lm
            start = dictionary.bos()
            two = getattr(self.model.args, "segments", 1) == 1
            between = dictionary.eos() if two else None
        parts = [self._encode(text, dictionary)]
        if second:
            parts.append(self._encode(second, dictionary))
            parts.insert(1, torch.tensor([] if between is None else [between]).long())
        parts.insert(0, torch.tensor([] if start is None else [start]).long())
        return torch.cat(parts)

    def _encode(self, text: str, dictionary: Any) -> LongTensor:
        if not text.strip():
            raise ValueError("there is no word in the text")
        for step in (self.tokenizer, self.bpe):
            text = text if step is None else step.encode(text)
        return dictionary.encode_line(text, add_if_not_exist=False).long()

    def _check_length(self, tokens: LongTensor, limits: Any) -> None:
        most = min(limits) if isinstance(limits, tuple) else limits
        if most is not None and len(tokens) > most:
            raise ValueError(
                f"a text of {len(tokens)} tokens is longer than the model's {most} positions: "
                "shorten it"
            )

    def _translate(self, sample: dict) -> LongTensor:
        generator = self.task.build_generator([self.model], self.cfg.generation)
        with torch.no_grad():
            found = self.task.inference_step(generator, [self.model], sample)
        return found[0][0]["tokens"].cpu().long()

    def _words(self, tokens: LongTensor, dictionary: Any) -> list[str]:
        return [dictionary[i] for i in tokens.tolist()]


def open_reader(path: str | Path, cfg: DictConfig, data: str | None = None) -> Reader:
    """A checkpoint with the dictionaries it was trained with.

    Args:
        cfg: of fairseq-interactive.
        data: the folder of the dictionaries; without it that of the training, or else the
            checkpoint's own.

    Raises:
        OSError: if the checkpoint or a dictionary is not there.
        ValueError: if it is no checkpoint, or not of these dictionaries.
    """
    checkpoint_files.read(path)  # says what is wrong where fairseq's loader only fails
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    saved = state["cfg"]
    folder = Path(data or _data_of(saved, Path(path)))
    if not _has_dictionary(folder):
        raise FileNotFoundError(
            f"{folder} has no dict.txt or dict.LANGUAGE.txt: give the folder of the training data "
            "by --data"
        )
    with open_dict(saved.task):
        saved.task.data = str(folder)
    overrides = {"load_checkpoint_heads": True}  # a classifier is none of the task masked_lm
    try:
        task = tasks.setup_task(saved.task)
        models, _ = checkpoint_utils.load_model_ensemble([str(path)], overrides, task)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{folder} lacks {Path(error.filename or '?').name}: give the folder of the training "
            "data by --data"
        ) from error
    except (AssertionError, KeyError, RuntimeError, AttributeError) as error:
        raise ValueError(f"cannot rebuild the model of {path}: {build.one_line(error)}") from error
    _take_own_tokenizer(cfg, folder, Path(path).parent)
    return Reader(task, models[0].eval(), saved, cfg)


def _data_of(saved: DictConfig, path: Path) -> Path:
    """The folder of the training if it is still there, else the checkpoint's."""
    trained_on = str(getattr(saved.task, "data", "") or "").split(":")[0]
    folders = [Path(trained_on), path.parent] if trained_on else [path.parent]
    return next((folder for folder in folders if _has_dictionary(folder)), folders[0])


def _has_dictionary(folder: Path) -> bool:
    return any(True for name in ("dict*.txt", "input0/dict.txt") for _ in folder.glob(name))


def _take_own_tokenizer(cfg: DictConfig, *folders: Path) -> None:
    """An imported model's tokeniser lies beside it, or beside its data."""
    found = [folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()]
    if cfg.bpe is None and found:
        with open_dict(cfg):
            cfg.bpe = {"_name": BPE, "hf_tokenizer": str(found[0])}
