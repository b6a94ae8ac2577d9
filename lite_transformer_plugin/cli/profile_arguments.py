"""The flags of `fairseq-profile`, and which of them go together."""

import argparse
from collections.abc import Sequence

from .. import build
from ..cost import CONVENTIONS
from . import Parser

NAME = "fairseq-profile"
EPILOG = """Other flags go to the architectures, as in fairseq-train: --encoder-embed-dim 120.
Mult-Adds are multiplications with an addition, for one sentence; --convention paper leaves
embeddings and output projection out, as Wu et al. (2020) do."""


def parser() -> Parser:
    """All flags."""
    p = Parser(
        NAME, description="What models cost, side by side, and where the cost lies.", epilog=EPILOG
    )
    models = p.add_argument_group("which models")
    models.add_argument("--path", nargs="+", default=[], metavar="CKPT", help="checkpoints")
    models.add_argument(
        "--arch", nargs="+", default=[], metavar="NAME", help="registered architectures"
    )
    models.add_argument(
        "--vocab", type=int, metavar="N", help="dictionary entries on either side, for --arch"
    )
    models.add_argument("--user-dir", metavar="DIR", help="another plugin with architectures")

    how = p.add_argument_group("how to count")
    how.add_argument("--src-len", type=int, default=30, metavar="N", help="source tokens")
    how.add_argument("--tgt-len", type=int, default=30, metavar="N", help="target tokens")
    how.add_argument(
        "--convention", choices=CONVENTIONS, default="paper", help="what counts as Mult-Adds"
    )
    how.add_argument("--no-taps", action="store_true", help="leave convolution taps out")

    what = p.add_argument_group("what to find out")
    what.add_argument(
        "--find-width",
        metavar="COUNT",
        help="the embedding size at which --arch costs that many Mult-Adds, as 54M",
    )
    what.add_argument(
        "--lengths",
        metavar="FROM:TO",
        help="how the shares of the parts grow with length, as 10:1000; without models, for one "
        "layer with a 4d FFN, one with a flat FFN, and LSRA",
    )
    what.add_argument(
        "--embed-dim", type=int, default=512, metavar="D", help="of these layers, for --lengths"
    )
    what.add_argument("--latency", action="store_true", help="measure how long the models take")
    what.add_argument("--threads", type=int, default=1, metavar="N", help="for --latency")
    what.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="sentences, for --latency"
    )
    what.add_argument("--beam", type=int, default=4, metavar="N", help="for --latency")
    what.add_argument("--repeats", type=int, default=10, metavar="N", help="turns, for --latency")
    what.add_argument("--warmup", type=int, default=2, metavar="N", help="turns not counted")
    what.add_argument("--seed", type=int, default=1, help="of random weights and sentences")

    out = p.add_argument_group("what to write")
    out.add_argument("--json", metavar="FILE", help="plain numbers, and how they were made")
    out.add_argument("--csv", metavar="FILE", help="the same figures as lines")
    out.add_argument(
        "--plot",
        nargs="+",
        metavar=("FILE", "RESULT.json"),
        help="a picture: of the shares with --lengths; else of published quality over Mult-Adds, "
        "and of the measured results in these files (FILE shows all benchmarks, FILE-NAME one)",
    )
    out.add_argument("--force", action="store_true", help="replace files that exist")
    return p


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own arguments, and the flags that belong to the architectures.

    Raises:
        ValueError: for arguments that are wrong or contradict each other.
    """
    args, flags = parser().parse_known_args(argv)
    args.command = [NAME, *argv]
    models = args.path or args.arch
    if flags and not args.arch:
        raise ValueError(f"unrecognized arguments: {' '.join(flags)} (see --help)")
    if not (models or args.lengths or args.plot):
        raise ValueError("nothing to do: give --path, --arch, --lengths or --plot (see --help)")
    if args.find_width and (args.path or not args.arch):
        raise ValueError("--find-width varies architectures: give --arch, and no --path")
    if sum(map(bool, (args.find_width, args.lengths, args.latency))) > 1:
        raise ValueError("give only one of --find-width, --lengths and --latency")
    if args.latency and not models:
        raise ValueError("--latency measures models: give --path or --arch")
    if args.plot and models and not args.lengths:
        raise ValueError("--plot draws --lengths, or published and measured results without models")
    if args.plot and len(args.plot) > 1 and args.lengths:
        raise ValueError("--plot takes one file with --lengths")
    varied = args.find_width or args.lengths
    if args.arch and args.vocab is None and (not varied or args.convention == "full"):
        raise ValueError("--arch needs --vocab, the number of dictionary entries, as --vocab 32768")
    if args.vocab is None:
        args.vocab = build.SPECIAL_SYMBOLS + 1  # of no consequence, as embeddings are not counted
    return args, flags
