"""What the stages of `fairseq-prune-heads` share: a model, its data, and what is known of it."""

import argparse
import ast
import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.logging import progress_bar
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from .. import report
from ..evaluation import Translator
from ..forward_passes import ClassifierPass, ForwardPass, LanguageModelPass
from ..heads import ordering, pictures
from ..heads.names import Head, list_heads
from ..metrics import METRICS, Metric
from ..results_folder import ResultsFolder
from ..scoring import Bleu
from ..summed_metrics import SummedMetric, perplexity, predictions, summaries
from . import processes
from .prune_heads_arguments import SHARES


@dataclass
class Output:
    """Where rows and pictures go, and how they were made."""

    folder: ResultsFolder
    command: list[str]
    seed: int

    def write(self, name: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """NAME.json and NAME.csv; the same bytes whenever the same command finds the same."""
        if processes.rank():
            return
        made = report.provenance(self.command, self.seed)
        del made["date"]
        data = {"provenance": made, **more, name: list(rows)}
        report.write_json(self.folder.path(f"{name}.json"), data, force=True)
        report.write_csv(self.folder.path(f"{name}.csv"), rows, force=True)

    def draw(self, name: str, figure: Any) -> None:
        if not processes.rank():
            pictures.save(figure, self.folder.path(name), force=True)

    def say(self, text: str) -> None:
        if not processes.rank():
            print(text, flush=True)


@dataclass
class Study:
    """One model with its data, and what was found about it."""

    args: argparse.Namespace
    cfg: DictConfig
    folder: ResultsFolder
    path: str
    task: FairseqTask
    model: nn.Module
    saved_cfg: DictConfig
    runner: Translator | ForwardPass | None  # none with --only-importance
    name: str = ""  # tells models of one command apart in what is remembered

    @property
    def heads(self) -> list[Head]:
        """Those that may go."""
        return list_heads(self.model, self.args.parts)

    @property
    def metric(self) -> Metric:
        return METRICS[self.args.metric]

    def scored(self, runner: Translator | ForwardPass | None = None) -> Bleu | SummedMetric:
        """The metric on the split, or on that of another runner."""
        runner, name = runner or self.runner, self.metric.name
        if name == "bleu":
            return Bleu.from_config(runner.references, self.cfg.scoring)
        if name == "rouge":
            return summaries(runner.references)
        return perplexity() if name == "perplexity" else predictions(name, runner.labels)

    def progress(self, items: Iterable, what: str) -> Iterable:
        return progress_bar.progress_bar(
            items,
            log_format=self.cfg.common.log_format or "simple",
            log_interval=self.cfg.common.log_interval,
            prefix=what,
        )


def open_study(
    args: argparse.Namespace, cfg: DictConfig, folder: ResultsFolder, path: str, name: str = ""
) -> Study:
    """Load a checkpoint as fairseq-generate does, and see that all can be done that is asked for.

    Raises:
        ValueError: if the model has no attention heads in these parts, or not enough, and for a
            split that is not there.
    """
    task = setup_task(args, cfg, path)
    overrides = ast.literal_eval(cfg.common_eval.model_overrides)
    models, saved_cfg = checkpoint_utils.load_model_ensemble([path], overrides, task)
    model = models[0].eval()
    if cfg.common.fp16:
        model.half()
    if torch.cuda.is_available() and not cfg.common.cpu:
        model.cuda()
    model.prepare_for_inference_(cfg)
    if not list_heads(model, args.parts):
        raise ValueError(f"{path}: {type(model).__name__} has no heads of {','.join(args.parts)}")
    limit_shares(args, list_heads(model, args.parts))
    study = Study(args, cfg, folder, path, task, model, saved_cfg, None, name)
    if not args.only_importance:
        study.runner = open_runner(study, task)
        study.scored()  # says now what is wrong with the references or classes
    return study


def setup_task(args: argparse.Namespace, cfg: DictConfig, path: str) -> FairseqTask:
    """The task of the command line; of a classifier that of its training, but for the data.

    Classes, tokens between sentences and the name of the head are then as the model knows them.
    """
    if METRICS[args.metric].task != "sentence_prediction":
        return tasks.setup_task(cfg.task)
    trained = checkpoint_utils.load_checkpoint_to_cpu(path)["cfg"]
    if trained.task._name != "sentence_prediction":
        raise ValueError(f"{path} was trained for {trained.task._name}, not sentence_prediction")
    trained.task.data = cfg.task.data
    return tasks.setup_task(trained.task)  # which looks things up in the rest of the configuration


def limit_shares(args: argparse.Namespace, heads: Sequence[Head]) -> None:
    """Of the default --ratios, keep those that --min-heads-per-layer allows.

    Raises:
        ValueError: for a share that the user has given, before hours are spent.
    """
    left = Counter(head.place for head in heads).values()
    may_go = sum(max(0, number - args.min_heads_per_layer) for number in left)
    if args.ratios == list(SHARES):
        args.ratios = [s for s in SHARES if ordering.number_of(s, len(heads)) <= may_go]
    for share in (*args.ratios, *args.save_ratio):
        number = ordering.number_of(share, len(heads))
        if number > may_go:
            raise ValueError(
                f"a share of {share:g} is {number} of {len(heads)} heads, but "
                f"--min-heads-per-layer {args.min_heads_per_layer} lets {may_go} go"
            )


def open_runner(study: Study, task: FairseqTask) -> Translator | ForwardPass:
    """The model on --gen-subset of a task's data, as the metric needs it.

    Raises:
        ValueError: for a split that is not there, or a label unseen in training.
    """
    split, args = study.cfg.dataset.gen_subset, study.args
    kind, more = Translator, {}
    if study.metric.task == "language_modeling":
        kind = LanguageModelPass
    elif study.metric.task == "sentence_prediction":
        kind = ClassifierPass
        more["head"] = study.saved_cfg.criterion.classification_head_name
    how = (study.cfg, split, args.subset_size, study.cfg.common.seed)
    try:
        return kind(task, study.model, *how, **more)
    except FileNotFoundError as error:
        raise ValueError(
            f"--gen-subset {split}: there is no such split in {study.cfg.task.data}"
        ) from error


def open_runner_elsewhere(study: Study, data: str) -> Translator | ForwardPass:
    """The same model on the split of another folder.

    Raises:
        ValueError: if its dictionary is another.
    """
    cfg = copy.deepcopy(study.cfg)
    cfg.task.data = data
    task = setup_task(study.args, cfg, study.path)
    if task.target_dictionary != study.task.target_dictionary:
        raise ValueError(f"--compare-data {data}: its dictionary is not that of the model")
    return open_runner(study, task)
