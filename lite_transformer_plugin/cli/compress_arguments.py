"""The flags of `fairseq-compress`: those of fairseq-generate, and its own."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

import lite_transformer_plugin

from ..compression import check_bits
from ..compression.sparsify import check_share

NAME = "fairseq-compress"
# What changes where and how fast a command runs, but not what it finds.
IMMATERIAL = ("results_dir", "output", "force", "path", "user_dir", "log_format", "log_interval")


def parser() -> argparse.ArgumentParser:
    """fairseq-generate's parser with a group of ours."""
    result = options.get_generation_parser()
    result.prog = NAME
    result.error = _complain
    folder = str(Path(lite_transformer_plugin.__file__).parent)
    result.set_defaults(gen_subset="valid", user_dir=folder)
    group = result.add_argument_group("compression")
    add = group.add_argument
    add("--output", metavar="FILE", help="the compressed checkpoint to write; required")
    add("--bits", type=int, metavar="N", help="of a weight's code, 2 to 8; none: zeros only")
    add("--group-rows", type=int, default=0, metavar="N", help="rows that share a codebook; all: 0")
    zeros = group.add_mutually_exclusive_group()
    add = zeros.add_argument
    add("--sparsity", type=float, metavar="S", help="share of weights that become zeros")
    ratio = "as many zeros as make the file R times smaller than 4 bytes a parameter"
    add("--target-ratio", type=float, metavar="R", help=ratio)
    loss = "as many zeros as cost D points of BLEU on --gen-subset (or of loss: see --no-bleu)"
    add("--max-loss", type=float, metavar="D", help=loss)
    add = group.add_argument
    few = "of --gen-subset, to see what zeros cost (default: 100)"
    add("--sensitivity-sentences", type=int, default=100, metavar="N", help=few)
    add("--no-bleu", action="store_true", help="validation loss only, to base 2; do not translate")
    add("--results-dir", metavar="DIR", help="tables and progress (default: FILE without .pt)")
    add("--force", action="store_true", help="replace FILE, and the results of another command")
    return result


def _complain(message: str) -> None:
    raise ValueError(f"{message} (see --help)")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, DictConfig]:
    """The flags, checked as far as they can be without data and model, and fairseq's settings.

    Raises:
        ValueError: for flags that are wrong, missing or contradict each other.
    """
    words = list(argv)
    if any(word.split("=")[-1] == "sentence_prediction" for word in words):
        words += ["--criterion", "sentence_prediction"]  # to which the task's settings refer
    args = options.parse_args_and_arch(parser(), words)
    if not args.path or not Path(args.path).is_file():
        raise ValueError(f"there is no checkpoint {args.path}: name one file by --path")
    if not args.output:
        raise ValueError("--output FILE is missing: where shall the compressed checkpoint go?")
    if args.bits is not None:
        check_bits(args.bits)
    if args.sparsity is not None:
        check_share(args.sparsity)
    for name, least in {"target_ratio": 1, "max_loss": 0, "group_rows": 0}.items():
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise ValueError(f"--{name.replace('_', '-')} {value:g} must be at least {least}")
    if args.sensitivity_sentences < 1:
        raise ValueError("--sensitivity-sentences must be at least 1")
    if not args.results_dir:
        args.results_dir = str(Path(args.output).with_suffix(""))
    if Path(args.results_dir) == Path(args.output):
        args.results_dir += "-results"
    return args, convert_namespace_to_omegaconf(args)


def settings(args: argparse.Namespace, digest: str) -> dict[str, Any]:
    """All that decides the results; two commands that agree in it find the same."""
    found = {k: v for k, v in vars(args).items() if k not in IMMATERIAL and not k.startswith("_")}
    plain = (int, float, list, type(None))
    return {k: v if isinstance(v, plain) else str(v) for k, v in found.items()} | {
        "checkpoint": digest
    }
