"""Score a model on a split: fairseq-generate's translations, made in this process, and their BLEU.

A split is read and cut into batches once, then translated as often as one likes, with heads masked
or not. The task's own search does it on the batches that fairseq-generate would make, so with the
same flags the translations are the same to the last bit.
"""

import ctypes
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from fairseq import utils
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.sequence_generator import EnsembleModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from torch import Tensor, nn

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

DEFAULT_MAX_TOKENS = 12000  # of a batch, where no flag limits it, as in fairseq-generate
NOT_HERE = ("lm_path", "replace_unk", "score_reference")
SIGNIFICANT = 0.01  # Michel et al. 2019, section 3
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>

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
        dataset = task.dataset(split)
        if subset_size is not None:
            dataset = _Subset(dataset, choose(len(dataset), subset_size, seed))
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

    def _translate_batch(self, sample: dict, keep_encoder: bool) -> list[tuple]:
        prefix_size = self.cfg.generation.prefix_size
        prefix = sample["target"][:, :prefix_size] if prefix_size else None
        if isinstance(self.generator.model, _SearchedModel):
            self.generator.model.keep_encoder = keep_encoder
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


# --- batches --------------------------------------------------------------------------------------


def choose(count: int, size: int, seed: int) -> np.ndarray:
    """``size`` of the numbers below ``count``, ascending; all if there are fewer.

    Raises:
        ValueError: if that is none.
    """
    if size < 1:
        raise ValueError(f"a subset of {size} sentences is empty: give at least 1")
    # RandomState: its stream never changes, from one numpy to the next
    return np.sort(np.random.RandomState(seed).permutation(count)[:size])


class _Subset(BaseWrapperDataset):
    """Some sentences of a data set, under the numbers they have there."""

    def __init__(self, dataset: FairseqDataset, numbers: np.ndarray):
        super().__init__(dataset)
        self.numbers = numbers

    def ordered_indices(self) -> np.ndarray:
        indices = self.dataset.ordered_indices()
        return indices[np.isin(indices, self.numbers)]


def make_batches(
    task: FairseqTask, model: nn.Module, cfg: DictConfig, dataset: FairseqDataset
) -> list[dict]:
    """The batches that fairseq-generate makes of a data set, on the model's device."""
    limits = cfg.dataset
    unlimited = limits.max_tokens is None and limits.batch_size is None
    batches = task.get_batch_iterator(
        dataset=dataset,
        max_tokens=DEFAULT_MAX_TOKENS if unlimited else limits.max_tokens,
        max_sentences=limits.batch_size,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        ignore_invalid_inputs=limits.skip_invalid_size_inputs_valid_test,
        required_batch_size_multiple=limits.required_batch_size_multiple,
        seed=cfg.common.seed,
    ).next_epoch_itr(shuffle=False)
    device = next(model.parameters()).device
    return [utils.apply_to_sample(lambda x: x.to(device), b) for b in batches if "net_input" in b]


# --- search ---------------------------------------------------------------------------------------


def build_generator(
    task: FairseqTask, model: nn.Module, cfg: DictConfig, encoder_memory: int = 1 << 30
) -> Any:
    """The task's own generator; without alignments it does only what its translations need."""
    extra = {"lm_model": None, "lm_weight": cfg.generation.lm_weight}
    generator = task.build_generator([model], cfg.generation, extra_gen_cls_kwargs=extra)
    # a kind of its own, as one that aligns, may read what ours leaves out
    if type(getattr(generator, "model", None)) is EnsembleModel and hasattr(model, "encoder"):
        generator.model = _SearchedModel(model, encoder_memory).eval()
    return generator


class _SearchedModel(EnsembleModel):
    """What a search asks of its model, without the parts that change no translation.

    Attention weights are not recorded; encoder outputs can be kept; and they are put into the
    beams' new order only when sentences have left the batch, since all beams of a sentence read
    the same.
    """

    def __init__(self, model: nn.Module, memory: int):
        super().__init__([model])
        self.keep_encoder = False
        self.memory = memory  # bytes
        self.kept: dict[int, Any] = {}
        self.rows = 0

    def forward_encoder(self, net_input: dict[str, Tensor]) -> Any:
        self.rows = 0
        key = id(net_input)  # the batches live as long as their translator
        if self.keep_encoder and key in self.kept:
            return self.kept[key]
        outputs = super().forward_encoder(net_input)
        if self.keep_encoder and (size := _bytes(outputs)) <= self.memory:
            self.memory -= size
            self.kept[key] = outputs
        return outputs

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> Any:
        if new_order.numel() == self.rows:
            return encoder_outs
        self.rows = new_order.numel()
        return super().reorder_encoder_out(encoder_outs, new_order)

    def forward_decoder(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return super().forward_decoder(*args, **kwargs)[0], None


def _bytes(outputs: Any) -> int:
    sizes = []
    utils.apply_to_sample(lambda x: sizes.append(x.numel() * x.element_size()), {"all": outputs})
    return sum(sizes)


def keep_freed_memory(size: int = 1 << 30) -> None:
    """Let glibc keep memory that tensors of up to ``size`` bytes have freed; do nothing elsewhere.

    A step of a search makes and frees tensors of megabytes. By default their pages go back to the
    system, to be asked for and cleared at the next step: keeping them saves a fifth of the time of
    a translation on a CPU, and changes no result.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, size)


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


# --- scores ---------------------------------------------------------------------------------------


class Bleu:
    """Corpus BLEU by sacreBLEU, of any number of systems against the same references."""

    def __init__(self, references: Sequence[str], tokenize: str = "13a", lowercase: bool = False):
        """
        Args:
            tokenize: sacreBLEU's name of a tokeniser; "none" for text that is tokenised.

        Raises:
            ValueError: if there are no references.
        """
        if not references or None in references:
            raise ValueError("BLEU needs references: the split has no target side, or is empty")
        self.metric = BLEU(lowercase=lowercase, tokenize=tokenize, references=[list(references)])

    @classmethod
    def from_config(cls, references: Sequence[str], scoring: Any) -> "Bleu":
        """As fairseq's ``--scoring sacrebleu`` and its options say; else sacreBLEU's default.

        Raises:
            ValueError: as above, and for an option that is not supported here.
        """
        if getattr(scoring, "_name", None) != "sacrebleu":
            return cls(references)
        if scoring.sacrebleu_char_level:
            raise ValueError("--sacrebleu-char-level: give --sacrebleu-tokenizer char instead")
        return cls(references, str(scoring.sacrebleu_tokenizer), scoring.sacrebleu_lowercase)

    def score(self, texts: Sequence[str]) -> float:
        return self.metric.corpus_score(texts, None).score

    @property
    def signature(self) -> str:
        return self.metric.get_signature().format()


class Comparison(NamedTuple):
    """A system's score, in points what it has more than the base, and how likely that is chance."""

    score: float
    difference: float
    p: float

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT


class PairedBootstrap:
    """Compare any number of systems with one base by sacreBLEU's paired bootstrap resampling."""

    def __init__(
        self, bleu: Bleu, base: Sequence[str], resamples: int = 1000, seed: int = 12345
    ) -> None:
        """
        Args:
            base: texts of the base, one for each reference.
            seed: of the resamples, the same for every system; sacreBLEU's default.

        Raises:
            ValueError: for a seed below 1, which sacreBLEU would not obey.
        """
        if seed < 1:
            raise ValueError(f"the seed of the resamples ({seed}) must be at least 1")
        self._base = ("base", list(base))
        with _sacrebleu(seed):
            metrics = {"BLEU": bleu.metric}
            self._test = PairedTest([self._base], metrics, None, "bs", n_samples=resamples)
        self.base = bleu.score(self._base[1])
        self.signature = self._test()[0]["BLEU"].format()

    def compare(self, texts: Sequence[str]) -> Comparison:
        """p is 1 for texts that score like the base on every resample, as equal ones do.

        sacreBLEU counts the resamples beyond the difference; where all are equal it finds none,
        and would call no difference a significant one.
        """
        # the test keeps what it counted of the base
        self._test.named_systems = [self._base, ("system", list(texts))]
        with _sacrebleu():
            base, system = self._test()[1]["BLEU"]
        alike = (system.score, system.mean, system.ci) == (base.score, base.mean, base.ci)
        p = 1.0 if alike else system.p_value
        return Comparison(system.score, system.score - base.score, p)


@contextmanager
def _sacrebleu(seed: int | None = None) -> Iterator[None]:
    """sacreBLEU with this seed, which it reads from the environment, and without its progress."""
    log, environment = logging.getLogger("sacrebleu"), os.environ.copy()
    level = log.level
    log.setLevel(logging.ERROR)
    if seed is not None:
        os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        log.setLevel(level)
        if seed is not None:
            os.environ.pop("SACREBLEU_SEED")
            os.environ.update(environment)
