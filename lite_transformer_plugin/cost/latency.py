"""How long a model takes: encoder, one decoder step, whole beam search; measured, not counted.

Models take turns, so that whatever slows the machine down meets all of them; the median and the
quartiles of the turns are given.
"""

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fairseq.models import BaseFairseqModel
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from .rules import Lengths

Work = Callable[[], object]
LEAST = {"batch_size": 1, "beam": 1, "threads": 1, "repeats": 1, "warmup": 0}


@dataclass(frozen=True)
class Setting:
    """What is measured, and how often."""

    lengths: Lengths = Lengths()
    batch_size: int = 1  # sentences
    beam: int = 4
    threads: int = 1
    warmup: int = 2  # turns that are thrown away
    repeats: int = 10
    seed: int = 1
    clock: Callable[[], float] = time.perf_counter  # or time.process_time, on a busy machine

    def __post_init__(self):
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} ({getattr(self, name)}) must be at least {least}")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one piece of work."""

    median: float
    lower: float  # quartiles
    upper: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        turns = [1000 * s for s in seconds]
        if len(turns) == 1:
            return cls(turns[0], turns[0], turns[0])
        lower, median, upper = statistics.quantiles(turns, n=4, method="inclusive")
        return cls(median, lower, upper)


@contextmanager
def threads(number: int):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def measure(models: dict[str, BaseFairseqModel], setting: Setting) -> dict[str, dict[str, Timing]]:
    """Timings of every model by what it does: ``encoder``, ``decoder step``, ``beam search``.

    The models are switched to evaluation and to fairseq's settings for generation, in place.

    Raises:
        ValueError: if sentences are longer than a model's positions.
    """
    for name, model in models.items():
        _check_positions(name, model, setting.lengths)
    torch.manual_seed(setting.seed)
    with threads(setting.threads):
        works = {name: _works(model, setting) for name, model in models.items()}
        seconds = {name: {kind: [] for kind in kinds} for name, kinds in works.items()}
        for turn in range(setting.warmup + setting.repeats):
            for name, kinds in works.items():
                for kind, prepare in kinds.items():
                    work = prepare()
                    start = setting.clock()
                    work()
                    spent = setting.clock() - start
                    if turn >= setting.warmup:
                        seconds[name][kind].append(spent)
    return {
        name: {kind: Timing.of(turns) for kind, turns in kinds.items()}
        for name, kinds in seconds.items()
    }


def _works(model: BaseFairseqModel, setting: Setting) -> dict[str, Callable[[], Work]]:
    """What the model can do; each is prepared outside the measured time."""
    model.eval()
    model.prepare_for_inference_(
        OmegaConf.create(
            {"generation": {"beam": setting.beam}, "dataset": {"batch_size": setting.batch_size}}
        )
    )
    works: dict[str, Callable[[], Work]] = {}
    source = None
    if hasattr(model, "encoder"):
        source = _sentences(model.encoder.dictionary, setting.batch_size, setting.lengths.source)
        works["encoder"] = lambda: lambda: _encode(model, source)
    if hasattr(model, "decoder"):
        works["decoder step"] = _decoder_step(model, source, setting)
        works["beam search"] = _beam_search(model, source, setting)
    return works


def _check_positions(name: str, model: BaseFairseqModel, lengths: Lengths) -> None:
    for side, tokens in (("encoder", lengths.source), ("decoder", lengths.target)):
        if hasattr(model, side) and tokens > getattr(model, side).max_positions():
            most = getattr(model, side).max_positions()
            raise ValueError(f"{name}: {tokens} tokens are more than its {side}'s {most} positions")


def _sentences(dictionary, batch: int, length: int) -> torch.Tensor:
    """Random words, then the end of the sentence: (B, T)."""
    tokens = torch.randint(dictionary.nspecial, len(dictionary), (batch, length))
    tokens[:, -1] = dictionary.eos()
    return tokens


def _encode(model: BaseFairseqModel, source: torch.Tensor):
    lengths = torch.full((source.size(0),), source.size(1))
    if hasattr(model, "decoder"):
        return model.encoder(source, src_lengths=lengths)
    return model(source, src_lengths=lengths, features_only=True)


def _decoder_step(model: BaseFairseqModel, source: torch.Tensor | None, setting: Setting):
    """The step that decodes the last word, after all others have been decoded one by one."""
    target = _sentences(model.decoder.dictionary, setting.batch_size, setting.lengths.target)
    inputs = {} if source is None else {"encoder_out": _encode(model, source)}
    state: dict = {}
    for length in range(1, target.size(1)):
        model.decoder(target[:, :length], incremental_state=state, **inputs)

    def prepare() -> Work:
        for module in _attentions(model):  # a beam search leaves its own number there
            module.beam_size = 1
        own = copy.deepcopy(state)  # a step may change its state in place
        return lambda: model.decoder(target, incremental_state=own, **inputs)

    return prepare


def _beam_search(model: BaseFairseqModel, source: torch.Tensor | None, setting: Setting):
    """Exactly as many steps as the target has tokens, the end of the sentence included."""
    words = setting.lengths.target - 1
    generator = SequenceGenerator(
        [model], model.decoder.dictionary, setting.beam, max_len_b=words, min_len=words
    )
    if source is None:  # a language model begins with the end of the sentence before
        source = torch.full((setting.batch_size, 1), model.decoder.dictionary.eos())
    lengths = torch.full((setting.batch_size,), source.size(1))
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}

    # how fairseq's attention was told about this beam, if it was
    sizes = {module: module.beam_size for module in _attentions(model)}

    def prepare() -> Work:
        for module, size in sizes.items():
            module.beam_size = size
        return lambda: generator.generate([model], sample)

    return prepare


def _attentions(model: BaseFairseqModel) -> list[MultiheadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]
