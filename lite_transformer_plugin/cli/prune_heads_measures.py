"""What `fairseq-prune-heads` measures of heads: importance, ablation, and the order they give."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

from ..batches import batch_iterator
from ..evaluation import Translator
from ..forward_passes import ForwardPass
from ..heads import ablation, importance, ordering
from ..heads.curve import removals
from ..heads.gates import masked
from ..heads.names import Head, format_heads, list_heads, parse_heads
from ..significance import Comparison
from . import processes
from .prune_heads_gates import build_loss, closed_by
from .prune_heads_study import Study

MAX_TOKENS = 4096  # of a batch for importance, where no flag limits it
Scores = Mapping[Head, float]


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
    return batch_iterator(
        study.task,
        study.model,
        study.cfg,
        dataset_of(study, flag, split),
        MAX_TOKENS,
        num_shards=processes.world_size(),
        shard_id=processes.rank(),
        num_workers=0,  # torch waits 5 s for a worker to end, in every pass
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
