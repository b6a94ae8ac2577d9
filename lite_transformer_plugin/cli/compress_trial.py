"""One model in its coded forms: what each is worth and how many bytes it takes."""

import argparse
import ast
import copy
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.criterions import FairseqCriterion
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from .. import build, checkpoint_files
from ..batches import make_batches
from ..compression import KEY, Coded, expand, is_packed, keep, magnitude_mask, quantize, sizes
from ..evaluation import Translator
from ..models.compressed import compress_checkpoint
from ..scoring import Bleu
from .compress_sizes import count_bytes, is_weight
from .prune_heads_gates import build_loss


@dataclass
class Trial:
    """A model whose weights are put in and measured; tied weights go by their first name."""

    args: argparse.Namespace
    cfg: DictConfig
    task: FairseqTask
    model: nn.Module  # never prepared for generation, which would keep copies of its weights
    state: dict[str, Any]  # the checkpoint as it was saved
    criterion: FairseqCriterion
    batches: list[dict] = field(default_factory=list)
    few: list[dict] = field(default_factory=list)  # of these, for sensitivity
    signature: str | None = None  # of BLEU, once it was measured

    def __post_init__(self) -> None:
        self.owner: dict[str, str] = {}  # every name's first name
        self.tensors: dict[str, Tensor] = {}  # as they were at first
        first: dict[int, str] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            self.owner[name] = first.setdefault(id(tensor), name)
            self.tensors.setdefault(self.owner[name], tensor.detach().cpu().clone())

    @property
    def weights(self) -> list[str]:
        """Those that get codes and zeros."""
        return [name for name, tensor in self.tensors.items() if is_weight(tensor)]

    @property
    def translates(self) -> bool:
        return not self.args.no_bleu and hasattr(self.model, "encoder") and hasattr(
            self.model, "decoder"
        )  # fmt: skip

    # --- forms ------------------------------------------------------------------------------------

    def coded(
        self, bits: int | None = None, shares: Mapping[str, float] | None = None
    ) -> dict[str, Coded]:
        """All tensors, with shares of zeros in the weights, and in codes if ``bits`` are given."""
        found = {}
        for name, tensor in self.tensors.items():
            if not is_weight(tensor):
                found[name] = keep(tensor, exact=bits is None)
                continue
            share = (shares or {}).get(name, 0.0)
            zeros = tensor * magnitude_mask(tensor, share) if share else tensor
            try:
                found[name] = (
                    quantize(zeros, bits, self.args.group_rows) if bits else keep(zeros, exact=True)
                )
            except ValueError as error:
                raise ValueError(f"{self.args.path}: {name}: {error}") from error
        return {name: found[owner] for name, owner in self.owner.items()}

    def put_in(self, coded: Mapping[str, Coded]) -> None:
        """Give the model the weights that these expand to."""
        own = self.model.state_dict(keep_vars=True)
        for name, owner in self.owner.items():
            if name == owner:
                own[name].data.copy_(expand(coded[name]))

    # --- measures ---------------------------------------------------------------------------------

    def loss(self, few: bool = False) -> float:
        """Of the training's criterion, per unit as fairseq-validate has it, to base 2."""
        total = size = 0.0
        with torch.inference_mode():
            for sample in self.few if few else self.batches:
                loss, sample_size, _ = self.criterion(self.model, sample)
                total, size = total + float(loss), size + float(sample_size)
        return total / size / math.log(2)

    def bleu(self) -> float | None:
        """Of the translations that fairseq-generate would make; None if the model makes none."""
        if not self.translates:
            return None
        model = copy.deepcopy(self.model)
        model.prepare_for_inference_(self.cfg)
        split = self.cfg.dataset.gen_subset
        translator = Translator(self.task, model, self.cfg, split, seed=self.cfg.common.seed)
        scorer = Bleu.from_config(translator.references, self.cfg.scoring)
        self.signature = scorer.signature
        return scorer.score(translator.translate().texts)

    def checkpoint(self, coded: Mapping[str, Coded]) -> dict[str, Any]:
        return compress_checkpoint(self.state, coded)

    def bytes_of(self, coded: Mapping[str, Coded]) -> dict[str, float]:
        """Of the whole file, by part, and by the authors' count."""
        state, file = self.checkpoint(coded), io.BytesIO()
        torch.save(state, file)
        numbers = {name: tensor.numel() for name, tensor in self.tensors.items()}
        return count_bytes(state, coded, file.tell(), numbers)


# --- opening --------------------------------------------------------------------------------------


def open_trial(args: argparse.Namespace, cfg: DictConfig) -> Trial:
    """Load a checkpoint as fairseq-generate does, and the split on which it is measured.

    Raises:
        ValueError: if the model has codes already, or there is no such split.
    """
    state = checkpoint_files.read(args.path)
    task = setup_task(cfg, args.path)
    overrides = ast.literal_eval(cfg.common_eval.model_overrides)
    try:
        models, saved_cfg = checkpoint_utils.load_model_ensemble([args.path], overrides, task)
    except (AssertionError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"cannot rebuild the model of {args.path}: {build.one_line(error)}"
        ) from error
    model = models[0].eval()
    if torch.cuda.is_available() and not cfg.common.cpu:
        model.cuda()
    criterion = build_loss(task, saved_cfg.criterion).eval().to(next(model.parameters()).device)
    trial = Trial(args, cfg, task, model, state, criterion)
    split = cfg.dataset.gen_subset
    try:
        task.load_dataset(split)
    except FileNotFoundError as error:
        raise ValueError(f"--gen-subset {split}: there is no such split in {args.data}") from error
    trial.batches = make_batches(task, model, cfg, task.dataset(split))
    trial.few = some_of(trial.batches, args.sensitivity_sentences)
    if not trial.batches:
        raise ValueError(f"--gen-subset {split} has no sentence")
    return trial


def setup_task(cfg: DictConfig, path: str) -> FairseqTask:
    """The task of the command line; of a classifier that of its training, but for the data.

    Classes, tokens between sentences and the name of the head are then as the model knows them.
    """
    if cfg.task._name != "sentence_prediction":
        return tasks.setup_task(cfg.task)
    trained = checkpoint_utils.load_checkpoint_to_cpu(path)["cfg"]
    if trained.task._name != cfg.task._name:
        raise ValueError(f"{path} was trained for {trained.task._name}, not {cfg.task._name}")
    trained.task.data = cfg.task.data
    return tasks.setup_task(trained.task)


def some_of(batches: Sequence[dict], sentences: int) -> list[dict]:
    """Batches of all lengths with about so many sentences."""
    total = sum(batch["nsentences"] for batch in batches)
    step = max(1, total // sentences)
    return list(batches[::step]) or list(batches[:1])


def is_quantised(state: Mapping[str, Any]) -> bool:
    return is_packed(state["model"]) and any(part.bits for part in _sizes(state))


def is_trained_on(state: Mapping[str, Any]) -> bool:
    """Whether fairseq-train has written it, with its values in full precision."""
    return "last_optimizer_state" in state or "metrics" in (state.get("extra_state") or {})


def _sizes(state: Mapping[str, Any]) -> Iterable:
    return sizes(state["model"][KEY]).values()
