"""What the stages of `fairseq-prune-heads` share: a model, its data, and what is known of it."""

import argparse
import ast
import copy
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import progress_bar
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from .. import report
from ..evaluation import Translator
from ..forward_passes import ClassifierPass, ForwardPass, LanguageModelPass
from ..heads import ablation, importance, ordering, pictures
from ..heads.curve import removals
from ..heads.gates import masked
from ..heads.names import Head, format_heads, list_heads, parse_heads
from ..metrics import METRICS, Metric, SummedMetric, perplexity, predictions, summaries
from ..results_folder import ResultsFolder
from ..scoring import Bleu, Comparison
from . import processes
from .prune_heads_arguments import SHARES
from .prune_heads_gates import build_loss, closed_by

MAX_TOKENS = 4096  # of a batch for importance, where no flag limits it
Scores = Mapping[Head, float]


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


# --- importance, ablation, order ------------------------------------------------------------------


def importance_rows(study: Study, removed: Sequence[Head] = ()) -> list[dict[str, Any]]:
    """The importance of every head, with some masked; measured once."""
    kind, key = f"importance {study.name}", format_heads(removed)
    known = study.folder.known(kind)
    if key not in known:
        criterion = build_loss(study.task, study.saved_cfg.criterion).eval()
        what = f"importance without {len(removed)} heads"
        with masked(study.model, removed) if removed else nullcontext():
            found = importance.measure(
                study.model,
                criterion.to(next(study.model.parameters()).device),
                study.progress(samples(study), what),
                study.args.importance_unit,
                not study.args.raw_importance,
            )
        known[key] = importance.rows(found)
        study.folder.remember(kind, key, known[key])
    return known[key]


def samples(study: Study) -> Iterable[Mapping[str, Any]]:
    """This process's share of the batches: of a whole split in order, else of a shuffled one."""
    args, rank, world = study.args, processes.rank(), processes.world_size()
    batches = batches_of(study, "--importance-subset", args.importance_subset)
    if args.importance_steps is None:
        return batches.next_epoch_itr(shuffle=False)
    some = batches.next_epoch_itr(shuffle=True)
    some.take(max(0, -(-(args.importance_steps - rank) // world)))
    return some


def dataset_of(study: Study, flag: str, split: str) -> FairseqDataset:
    """A split, which is read once, and which that flag names."""
    if split not in study.task.datasets:
        try:
            study.task.load_dataset(split)
        except FileNotFoundError as error:
            raise ValueError(
                f"{flag} {split}: there is no such split in {study.cfg.task.data}"
            ) from error
    return study.task.dataset(split)


def batches_of(study: Study, flag: str, split: str) -> EpochBatchIterator:
    """The batches of a split of which each process gets its share."""
    limits = study.cfg.dataset
    unlimited = limits.max_tokens is None and limits.batch_size is None
    return study.task.get_batch_iterator(
        dataset=dataset_of(study, flag, split),
        max_tokens=MAX_TOKENS if unlimited else limits.max_tokens,
        max_sentences=limits.batch_size,
        max_positions=utils.resolve_max_positions(
            study.task.max_positions(), study.model.max_positions()
        ),
        ignore_invalid_inputs=limits.skip_invalid_size_inputs_valid_test,
        seed=study.cfg.common.seed,
        num_shards=processes.world_size(),
        shard_id=processes.rank(),
        num_workers=0,  # torch waits 5 s for a worker to end, in every pass
        disable_iterator_cache=True,  # the same split may be cut otherwise by who comes next
    )


def scores_of(rows: Iterable[Mapping[str, Any]]) -> dict[Head, float]:
    return {parse_heads(row["head"])[0]: row["importance"] for row in rows}


def ablate(
    study: Study, kind: str, elsewhere: Translator | ForwardPass | None = None
) -> ablation.Ablation:
    """Every head of the model, on the split or on other data."""
    runner, label = elsewhere or study.runner, study.metric.label
    remembered = f"{kind} {'elsewhere' if elsewhere else ''}"
    known = {
        parse_heads(name)[0]: Comparison(*figures)
        for name, figures in study.folder.known(remembered).items()
    }

    def on_result(head: Head, found: Comparison) -> None:
        study.folder.remember(remembered, str(head), list(found))
        print(
            f"{head} {kind}: {label} {found.score:.2f} ({found.difference:+.2f})", file=sys.stderr
        )

    scored = study.scored(runner)
    found = ablation.ablate(runner, scored, kind, study.args.parts, known, on_result)
    if not elsewhere:  # the curve begins there
        study.folder.remember(f"{study.metric.name} {study.name}", format_heads([]), found.base)
    return found


def steps(study: Study, shares: Sequence[float]) -> list[tuple[float, list[Head]]]:
    """Which heads are gone at each share, by --order or --gates-from."""
    args = study.args
    if args.gates_from:
        closed = closed_by(args.gates_from, study.model)
        return [(0.0, []), (len(closed) / len(study.heads), closed)]
    once = None if args.reestimate else _scores(study)

    def measure(removed: Sequence[Head]) -> Scores:
        return scores_of(importance_rows(study, removed)) if once is None else once

    return removals(measure, study.heads, shares, args.min_heads_per_layer)


def _scores(study: Study) -> Scores:
    args = study.args
    if args.order == "norm":
        return ordering.weight_norms(study.model)
    if args.order == "random":
        return ordering.random_scores(list_heads(study.model), args.order_seed)
    if args.order == "ablation":
        found = ablate(study, "one")
        scores = {head: result.score for head, result in found.results.items()}
        return ordering.ablation_scores(scores, found.base, study.metric.higher_is_better)
    return scores_of(importance_rows(study))
