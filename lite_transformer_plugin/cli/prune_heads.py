"""`fairseq-prune-heads`: which heads matter, and what score is left without the others.

A run is a row of stages - importance, roles, ablation, curve, saving - on one opened model. Each
remembers what it has found in the results folder, and a command that was stopped goes on there.
"""

import argparse
import hashlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from fairseq import utils
from omegaconf import DictConfig

from .. import checkpoint_files, report
from ..heads import ablation, ordering, pictures
from ..heads.curve import Point, curve
from ..heads.heat_maps import heat_maps
from ..heads.names import parse_heads
from ..heads.report_page import page
from ..heads.scatter import correlation
from ..metrics import METRICS
from ..models.pruned import check_not_packed
from ..results_folder import ResultsFolder, claim
from . import guarded, processes, prune_heads_gates, quiet_logs
from .prune_heads_arguments import NAME, command, default_settings, parse, settings
from .prune_heads_measures import ablate, importance_rows, scores_of, steps
from .prune_heads_roles import open_parses, write_roles
from .prune_heads_saving import save, saved_name
from .prune_heads_study import Output, Study, open_runner_elsewhere, open_study


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    quiet()
    args, cfg = parse(argv)
    report.new_figure(1, 1)  # pictures come last: say now if they cannot be drawn
    if args.save_ratio or args.gates_from:
        check_not_packed(checkpoint_files.read(args.path))  # before hours are spent
    claim(args.results_dir, settings(args, _digests(args)), args.force, default_settings(args))
    _check_saved(args)
    processes.run_in_processes(args.processes, work, list(argv), args, cfg)
    if args.report:
        write_report(args.results_dir)


def work(argv: Sequence[str], args: argparse.Namespace, cfg: DictConfig) -> None:
    """What each process does; the first one alone writes and prints."""
    quiet()
    utils.import_user_module(cfg.common)  # a process begins without it
    folder = ResultsFolder(args.results_dir, processes.rank())
    output = Output(folder, command(argv), args.order_seed)
    if args.checkpoints:
        dynamics(args, cfg, folder, output)
        return
    study = open_study(args, cfg, folder, args.path)
    parses = open_parses(study)
    if not args.gates_from:
        write_importance(study, output)
    if args.roles:
        write_roles(study, output, parses)
    if args.only_importance:
        return
    if args.ablate:
        write_ablation(study, output)
    points = write_curve(study, output)
    save(study, output, points)


def write_report(folder: str) -> None:
    """Everything that is in the folder, this command's and what earlier ones have left."""
    path, text = Path(folder) / "report.html", page(folder)
    report.write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"), force=True)
    print(f"{path}: open it in a browser", flush=True)


def quiet() -> None:
    """No word of how fairseq uses hydra and torch."""
    quiet_logs()
    warnings.simplefilter("ignore")


def _digests(args: argparse.Namespace) -> dict[str, str]:
    """Checkpoints by what is in them; their names tell curves apart."""
    found = {}
    for path in filter(None, [*(args.checkpoints or [args.path]), args.gates_from]):
        with open(path, "rb") as file:
            found["/".join(Path(path).parts[-2:])] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _check_saved(args: argparse.Namespace) -> None:
    known = ResultsFolder(args.results_dir).known("saved")
    names = [prune_heads_gates.SAVED] if args.gates_from else map(saved_name, args.save_ratio)
    for name in names:
        path = Path(args.results_dir) / name
        if path.name not in known:
            report.check_outputs([path], args.force)


# --- importance -----------------------------------------------------------------------------------


def write_importance(study: Study, output: Output) -> None:
    rows, args = importance_rows(study), study.args
    more = {"unit": args.importance_unit, "normalised": not args.raw_importance}
    output.write("importance", rows, **more)
    title = f"Importance of heads, per {args.importance_unit}"
    output.draw("importance", heat_maps(scores_of(rows), title))
    least = ", ".join(map(str, ordering.by_score(scores_of(rows))[:5]))
    output.say(f"importance of {len(rows)} heads on {args.importance_subset}: least in {least}")


# --- ablation -------------------------------------------------------------------------------------


def write_ablation(study: Study, output: Output) -> None:
    kind, data = study.args.ablate, study.args.compare_data
    here = ablate(study, kind)
    write_one_ablation(here, output, "ablation", study.cfg.dataset.gen_subset)
    if not data:
        return
    there = ablate(study, kind, open_runner_elsewhere(study, data))
    write_one_ablation(there, output, "ablation-elsewhere", Path(data).name)
    write_comparison(here, there, output, data)


def write_one_ablation(found: ablation.Ablation, output: Output, name: str, where: str) -> None:
    more = {"kind": found.kind, "base": found.base, "signature": found.signature}
    output.write(name, found.rows(), metric=found.metric.name, **more)
    differences = {head: result.difference for head, result in found.results.items()}
    significant = {head for head, result in found.results.items() if result.significant}
    title = f"{found.metric.label} {ablation.KINDS[found.kind]}, on {where}"
    label = found.metric.difference()
    figure = heat_maps(differences, title, label, signed=True, significant=significant)
    output.draw(name, figure)
    output.say(ablation.format_ablation(found))


def write_comparison(
    here: ablation.Ablation, there: ablation.Ablation, output: Output, data: str
) -> None:
    """The paper's section 3.4, and its tables 5 and 6."""
    try:
        found = ablation.correlate(here, there)
    except ValueError as error:  # the rest of the study is not lost for it
        output.say(f"{data} is not compared: {error}")
        return
    rows = ablation.tested_elsewhere(here, there)
    output.write("comparison", rows, metric=here.metric.name, **found._asdict())
    pairs = {h: (r.difference, there.results[h].difference) for h, r in here.results.items()}
    names = ("--gen-subset", "--compare-data")
    title = f"{here.metric.label} {ablation.KINDS[here.kind]}"
    figure = correlation(pairs, found.r, found.p, names, title, metric=here.metric)
    output.draw("comparison", figure)
    output.say(f"same heads on {data}: Pearson r = {found.r:.2f}, p = {found.p:.2g}")


# --- curves ---------------------------------------------------------------------------------------


def draw_curve(study: Study, output: Output) -> list[Point]:
    shares = {*study.args.ratios, *study.args.save_ratio}
    if study.args.checkpoints:
        shares.add(0.0)  # what each is compared with
    kind, label = f"{study.metric.name} {study.name}", study.metric.label

    def on_result(key: str, score: float) -> None:
        study.folder.remember(kind, key, score)
        removed = f"{len(parse_heads(key))} of {len(study.heads)}"
        output.say(f"{study.name} {removed} heads removed: {label} {score:.2f}")

    found = study.folder.known(kind)
    return curve(study.runner, study.scored(), steps(study, shares), found, on_result)


def write_curve(study: Study, output: Output) -> list[Point]:
    points, args = draw_curve(study, output), study.args
    more = {"order": args.order, "parts": args.parts, "reestimated": args.reestimate}
    metric, signature = study.metric, study.scored().signature
    rows = [point.row(metric.name) for point in points]
    output.write("curve", rows, **more, metric=metric.name, signature=signature)
    series = {args.order: [(point.share, point.score) for point in points]}
    title = f"Removing heads of {', '.join(args.parts)} by {args.order}"
    unpruned = points[0].score if points[0].share == 0 else None
    output.draw("curve", pictures.curves(series, title, unpruned, score=metric.label))
    return points


def dynamics(
    args: argparse.Namespace, cfg: DictConfig, folder: ResultsFolder, output: Output
) -> None:
    """One curve for each checkpoint of a training run (the paper's section 6 and figure 5)."""
    rows, series, signature = [], {}, ""
    for path in args.checkpoints:
        name = "/".join(Path(path).parts[-2:])
        study = open_study(args, cfg, folder, path, name)
        points = draw_curve(study, output)
        rows += [{"checkpoint": name, **point.row(args.metric)} for point in points]
        series[name] = [(point.share, point.score) for point in points]
        signature = study.scored().signature
    more = {"order": args.order, "parts": args.parts, "metric": args.metric}
    output.write("dynamics", rows, **more, signature=signature)
    title, label = "Removing heads in the course of training", METRICS[args.metric].label
    output.draw("dynamics", pictures.dynamics(series, title, score=label))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
