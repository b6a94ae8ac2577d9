"""The flags of `fairseq-prune-heads`: those of fairseq-generate, and its own."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

import lite_transformer_plugin

from ..heads.ablation import KINDS
from ..heads.importance import UNITS
from ..heads.names import PARTS, check_parts
from ..metrics import METRICS, metric_of
from . import prune_heads_gates

NAME = "fairseq-prune-heads"
ORDERS = ("importance", "ablation", "norm", "random")
SHARES = tuple(i / 10 for i in range(11))
# What changes where and how fast a command runs, but not what it finds.
IMMATERIAL = ("results_dir", "force", "processes", "report")


def parser() -> argparse.ArgumentParser:
    """fairseq-generate's parser with a group of ours."""
    result = options.get_generation_parser()
    result.prog = NAME
    result.error = _complain
    result.set_defaults(gen_subset="valid", user_dir=_own_folder())
    group = result.add_argument_group("heads")
    add = group.add_argument
    add("--results-dir", metavar="DIR", help="folder for all results; required")
    add("--force", action="store_true", help="replace the results of another command in DIR")
    add("--processes", type=int, default=1, metavar="N", help="share the work (default: 1)")
    add("--only-importance", action="store_true", help="stop after the importance of the heads")
    add("--importance-subset", default="train", metavar="SPLIT", help="(default: train)")
    add("--importance-steps", type=int, metavar="N", help="batches; default: the whole split")
    add("--importance-unit", default="sentence", choices=UNITS, help="(default: sentence)")
    add("--raw-importance", action="store_true", help="not divided by the norm of each layer")
    add("--subset-size", type=int, metavar="N", help="translate N sentences of --gen-subset only")
    add("--metric", choices=METRICS, help="default: that of --task, as BLEU for translation")
    add("--ablate", choices=KINDS, help="mask every head, or all but one, and test what is lost")
    add(
        "--order", default="importance", choices=ORDERS, help="who goes first (default: importance)"
    )
    add("--order-seed", type=int, default=1, metavar="SEED", help="of --order random (default: 1)")
    add("--parts", default="E,A,D", help="whose heads may go, as A or E,D (default: E,A,D)")
    add("--ratios", metavar="R,R", help="shares of heads to remove (default: 0,0.1 ... 1)")
    add("--min-heads-per-layer", type=int, default=0, metavar="N", help="(default: 0)")
    add("--reestimate", action="store_true", help="measure importance anew before each step")
    add("--compare-data", metavar="DATA2", help="do the same heads matter there? With --ablate")
    add("--checkpoints", nargs="+", metavar="CKPT", help="one curve each, instead of --path")
    add("--roles", action="store_true", help="what do heads look at, on --gen-subset?")
    add("--parses", metavar="CONLLU", help="of its sources, for syntactic heads; with --roles")
    add("--save-ratio", metavar="R,R", help="write pruned-40.pt for a share of 0.4")
    add("--report", action="store_true", help="at the end, write a page, report.html, into DIR")
    add("--gates-from", metavar="CKPT", help="write pruned-gates.pt without what it has closed")
    return result


def _complain(message: str) -> None:
    raise ValueError(f"{message} (see --help)")


def _own_folder() -> str:
    return str(Path(lite_transformer_plugin.__file__).parent)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, DictConfig]:
    """The flags, checked as far as they can be without data and model, and fairseq's settings.

    Raises:
        ValueError: for flags that are wrong, missing or contradict each other.
    """
    words = list(argv)
    if any(word.split("=")[-1] == "sentence_prediction" for word in words):
        # the task's settings refer to those of the criterion of the same name
        words += ["--criterion", "sentence_prediction"]
    args = options.parse_args_and_arch(parser(), words)
    if not args.results_dir:
        raise ValueError("--results-dir DIR is missing: where shall the results go?")
    if args.checkpoints and args.path:
        raise ValueError("give either --path or --checkpoints, not both")
    paths = args.checkpoints or [args.path]
    if not paths[0]:
        raise ValueError("--path CKPT is missing: which model?")
    for path in paths:
        if not Path(path).is_file():
            raise ValueError(f"there is no checkpoint {path}: name one file (no ensemble)")
    args.path = paths[0]
    args.ratios = _shares("--ratios", args.ratios) if args.ratios else list(SHARES)
    args.save_ratio = _shares("--save-ratio", args.save_ratio) if args.save_ratio else []
    args.parts = sorted(check_parts(args.parts.split(",")), key=list(PARTS).index)
    args.metric = metric_of(args.task, args.metric).name
    _check_together(args)
    return args, convert_namespace_to_omegaconf(args)


def _shares(flag: str, text: str) -> list[float]:
    try:
        shares = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{flag} {text}: write shares as 0,0.25,0.5") from error
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(f"{flag}: a share of heads lies between 0 and 1, not at {share:g}")
    return sorted(set(shares))


def _check_together(args: argparse.Namespace) -> None:
    if args.importance_steps is not None and args.importance_steps < 1:
        raise ValueError(f"--importance-steps ({args.importance_steps}) must be at least 1")
    if args.min_heads_per_layer < 0:
        raise ValueError(f"--min-heads-per-layer ({args.min_heads_per_layer}) is negative")
    if args.only_importance and (args.ablate or args.save_ratio or args.order != "importance"):
        raise ValueError("--only-importance stops before --ablate, --save-ratio and --order")
    if args.reestimate and args.order != "importance":
        raise ValueError(
            f"--reestimate measures importance: it does not go with --order {args.order}"
        )
    if args.compare_data and not args.ablate:
        raise ValueError("--compare-data compares ablations: give --ablate one or all-but-one, too")
    if args.checkpoints and (args.ablate or args.save_ratio):
        raise ValueError("--checkpoints draws curves only: --ablate and --save-ratio need --path")
    if args.roles and args.checkpoints:
        raise ValueError("--checkpoints draws curves only: --roles needs --path")
    if args.parses and not args.roles:
        raise ValueError("--parses tells which heads follow syntax: give --roles, too")
    if args.parses and not Path(args.parses).is_file():
        raise ValueError(f"--parses {args.parses}: there is no such file")
    if args.gates_from:
        prune_heads_gates.check_together(args, {"parts": list(PARTS), "ratios": list(SHARES)})
    if 0.0 in args.save_ratio:
        raise ValueError("--save-ratio 0 removes no head: there would be nothing to save")


def settings(args: argparse.Namespace, digests: dict[str, str]) -> dict[str, Any]:
    """All that decides the results; two commands that agree in it find the same."""
    skipped = {*IMMATERIAL, "user_dir", "log_format", "log_interval", "no_progress_bar", "cpu"}
    skipped |= {"num_workers", "path", "checkpoints", "gates_from", "log_file"}
    found = {k: v for k, v in vars(args).items() if k not in skipped and not k.startswith("_")}
    return _plain(found) | {"checkpoints": digests}


def default_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What ``settings`` has of our own flags when they are not given."""
    group = next(g for g in parser()._action_groups if g.title == "heads")
    found = {action.dest: action.default for action in group._group_actions}
    kept = {k: v for k, v in found.items() if k in settings(args, {})}
    return _plain(kept | {"metric": metric_of(args.task).name})


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, (int, float, list)) else str(v) for k, v in found.items()}


def command(argv: Sequence[str]) -> list[str]:
    """The command as it is written into results: without the folder, which is where they are."""
    words, kept, skip = [NAME, *argv], [], False
    for word in words:
        name = word.split("=")[0]
        if not skip and name not in ("--results-dir", "--force", "--processes", "--report"):
            kept.append(word)
        skip = word in ("--results-dir", "--processes")
    return kept
