"""A model on a split: fairseq-generate's translations, made in this process.

A split is read and cut into batches once, then translated as often as one likes, with heads masked
or not. The task's own search does it on the batches that fairseq-generate would make, so with the
same flags the translations are the same to the last bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from fairseq import utils
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from .batches import make_batches, subset
from .search import SearchedModel, build_generator, keep_freed_memory

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

NOT_HERE = ("lm_path", "replace_unk", "score_reference")

# --- translations ---------------------------------------------------------------------------------


class Translations(NamedTuple):
    """The best hypothesis of every sentence, in the order of the data set."""

    numbers: list[int]  # of the sentences in the data set
    tokens: list[str]  # as in fairseq-generate's H- lines
    texts: list[str]  # detokenised, as in its D- lines
    scores: list[float]  # logarithms to base 2, as in both


class Translator:
    """A split in batches, and the search for its translations by one model.

    ``numbers`` are those of the sentences in the data set, ``references`` their translations as
    fairseq-generate's T- lines have them (or None each). On a CPU the process keeps the memory
    that it has once used: see ``keep_freed_memory``.
    """

    def __init__(
        self,
        task: FairseqTask,
        model: nn.Module,
        cfg: DictConfig,
        split: str,
        subset_size: int | None = None,
        seed: int = 1,
        encoder_memory: int = 1 << 30,
    ):
        """
        Args:
            task: loads the split unless it has done so.
            model: on its device, in its precision, and prepared as fairseq-generate does, by
                ``model.prepare_for_inference_(cfg)``.
            cfg: what fairseq's generation parser makes of the flags of fairseq-generate.
            subset_size: translate so many sentences only, chosen by ``seed``; all if there are
                fewer. A smaller subset of a seed is part of a larger one.
            encoder_memory: how many bytes of encoder outputs ``keep_encoder`` may hold.

        Raises:
            FileNotFoundError: if there is no such split.
            ValueError: for a flag that is not supported here, or a subset without a sentence.
        """
        for flag in NOT_HERE:
            if getattr(cfg.generation, flag, None):
                raise ValueError(f"--{flag.replace('_', '-')} is for fairseq-generate only")
        if split not in task.datasets:
            task.load_dataset(split)
        dataset = subset(task.dataset(split), subset_size, seed)
        if next(model.parameters()).device.type == "cpu":
            keep_freed_memory()
        self.task, self.model, self.cfg = task, model, cfg
        self.generator = build_generator(task, model, cfg, encoder_memory)
        self.batches = make_batches(task, model, cfg, dataset)
        self._bpe, self._tokenizer = task.build_bpe(cfg.bpe), task.build_tokenizer(cfg.tokenizer)
        rows = sorted(row for batch in self.batches for row in self._references(batch))
        self.numbers, self.references = ([row[i] for row in rows] for i in (0, 1))

    def translate(self, keep_encoder: bool = False, shared: bool = False) -> Translations:
        """Translate the split.

        Args:
            keep_encoder: keep the encoder's outputs for later calls, or use those that are kept.
                For a decoder that changes while the encoder does not: all calls that keep must
                find the same encoder.
            shared: every process translates some of the batches, and has all in the end.
        """

        def work(sample: dict) -> list[tuple]:
            return self._translate_batch(sample, keep_encoder)

        found = share(self.batches, work) if shared else map(work, self.batches)
        rows = sorted(row for batch in found for row in batch)
        return Translations(*([row[i] for row in rows] for i in range(4)))

    def run(self, keep_encoder: bool = False, shared: bool = False) -> list[str]:
        """The texts alone."""
        return self.translate(keep_encoder, shared).texts

    def _translate_batch(self, sample: dict, keep_encoder: bool) -> list[tuple]:
        prefix_size = self.cfg.generation.prefix_size
        prefix = sample["target"][:, :prefix_size] if prefix_size else None
        if isinstance(self.generator.model, SearchedModel):
            self.generator.model.keep_encoder = keep_encoder
        with torch.inference_mode():  # takes a twentieth less time than no_grad, fairseq's own
            found = self.task.inference_step(
                self.generator,
                [self.model],
                sample,
                prefix_tokens=prefix,
                constraints=sample.get("constraints"),
            )
        best = (hypotheses[0] for hypotheses in found)
        return [self._row(*pair) for pair in zip(sample["id"].tolist(), best, strict=True)]

    def _row(self, number: int, hypothesis: dict[str, Tensor]) -> tuple[int, str, str, float]:
        text = self._string(hypothesis["tokens"])
        score = (hypothesis["score"] / math.log(2)).item()
        return number, text, self._decode(text), score

    def _references(self, sample: dict) -> Iterator[tuple[int, str | None]]:
        for i, number in enumerate(sample["id"].tolist()):
            text = None
            if sample["target"] is not None:
                padding = self.task.target_dictionary.pad()
                tokens = utils.strip_pad(sample["target"][i], padding)
                text = self._decode(self._string(tokens, escape_unk=True))
            yield number, text

    def _string(self, tokens: Tensor, escape_unk: bool = False) -> str:
        generator = self.generator
        return self.task.target_dictionary.string(
            tokens.int().cpu(),
            self.cfg.common_eval.post_process,
            escape_unk=escape_unk,
            extra_symbols_to_ignore=getattr(
                generator, "symbols_to_strip_from_output", {generator.eos}
            ),
        )

    def _decode(self, text: str) -> str:
        for encoder in (self._bpe, self._tokenizer):
            text = text if encoder is None else encoder.decode(text)
        return text


# --- processes ------------------------------------------------------------------------------------


def share(items: Sequence[Item], work: Callable[[Item], Outcome]) -> list[Outcome]:
    """``work`` on every item, split over the processes; all outcomes, in order, on every process.

    One process, without torch.distributed, does all. Outcomes are pickled on their way.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if distributed else 1
    rank = torch.distributed.get_rank() if distributed else 0
    mine = [work(item) for item in items[rank::world]]
    if world == 1:
        return mine
    parts: list[list[Outcome]] = [[] for _ in range(world)]
    torch.distributed.all_gather_object(parts, mine)
    return [parts[i % world][i // world] for i in range(len(items))]
