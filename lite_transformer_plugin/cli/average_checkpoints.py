"""`fairseq-average-checkpoints`: one checkpoint with the mean weights of several."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint_files, report
from ..averaging import average
from . import Parser, guarded, quiet_logs

NAME = "fairseq-average-checkpoints"
EPILOG = """The result has the configuration of the newest checkpoint and no optimizer state. It
serves fairseq-generate --path and fairseq-train --finetune-from-model."""


def parser() -> Parser:
    """All flags, spelt as in fairseq's script of that name."""
    p = Parser(NAME, description="The mean of several checkpoints, as one.", epilog=EPILOG)
    p.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="checkpoints, or the folder of a training run with one of --num-...",
    )
    p.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    which = p.add_mutually_exclusive_group()
    which.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="the last N of the folder's checkpointE.pt",
    )
    which.add_argument(
        "--num-update-checkpoints",
        type=int,
        metavar="N",
        help="the last N of the folder's checkpoint_E_U.pt (--save-interval-updates)",
    )
    which.add_argument(
        "--num-best-checkpoints",
        type=int,
        metavar="N",
        help="the N with the best score in their name, as checkpoint.best_loss_3.21.pt "
        "(--keep-best-checkpoints), of the folder or of the files given",
    )
    p.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="N",
        help="leave out later epochs, or later updates",
    )
    p.add_argument("--force", action="store_true", help="replace --output if it exists")
    return p


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, `unit` and `number` among them.

    Raises:
        ValueError: for arguments that are wrong or contradict each other.
    """
    args = parser().parse_args(argv)
    args.command = [NAME, *argv]
    args.unit = args.number = None
    for unit in ("epoch", "update", "best"):
        number = getattr(args, f"num_{unit}_checkpoints")
        if number is not None:
            args.unit, args.number = unit, number
    if args.number is not None and args.number < 1:
        raise ValueError(f"--num-{args.unit}-checkpoints ({args.number}) must be 1 or more")
    if args.checkpoint_upper_bound is not None and args.unit not in checkpoint_files.NUMBERED:
        raise ValueError(
            "--checkpoint-upper-bound goes with --num-epoch-checkpoints or --num-update-checkpoints"
        )
    return args


def chosen(args: argparse.Namespace) -> list[Path]:
    """The checkpoints to average."""
    paths = [Path(name) for name in args.inputs]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there")
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    if args.unit in checkpoint_files.NUMBERED:
        if folder is None:
            raise ValueError(f"--num-{args.unit}-checkpoints takes one folder as --inputs")
        return checkpoint_files.last(folder, args.unit, args.number, args.checkpoint_upper_bound)
    if args.unit == "best" and folder:
        paths = checkpoint_files.scored(folder)
    for path in filter(Path.is_dir, paths):
        raise IsADirectoryError(f"{path} is a folder: give files, or one folder and --num-...")
    return checkpoint_files.best(paths, args.number) if args.unit == "best" else paths


def save(state: dict[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        # after a failed write torch fails to end the file, too, which hides the reason
        reason = error if isinstance(error, OSError) else error.__context__
        raise OSError(f"cannot write a checkpoint into {path.parent}: {reason}") from error


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    args = parse(argv)
    report.check_outputs([args.output], args.force)
    paths = chosen(args)
    state = average(paths)
    state["average"] = report.provenance(args.command) | {"checkpoints": list(map(str, paths))}
    report.write_atomically(args.output, lambda file: save(state, file), args.force)
    for path in paths:
        print(path)
    count = f"{len(paths)} checkpoint" + "s" * (len(paths) > 1)
    print(f"averaged {count}, newest update {checkpoint_files.updates(state)}: {args.output}")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    quiet_logs()
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
