"""`fairseq-import-checkpoint`: a model of another library as a checkpoint of fairseq."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from .. import report
from ..huggingface.bert import Imported, import_bert
from ..huggingface.tokenizer import BPE, MASK, TOKENIZER
from . import Parser, guarded, quiet_logs

NAME = "fairseq-import-checkpoint"
FORMATS = ("hf-bert",)
EPILOG = """hf-bert is a folder with config.json, model.safetensors or pytorch_model.bin, and
tokenizer.json, vocab.txt or vocab.json and merges.txt. Beside the checkpoint appear dict.txt and
tokenizer.json, which fairseq's --bpe hf_tokenizer reads."""


def parser() -> Parser:
    p = Parser(
        NAME, description="A BERT or RoBERTa encoder as a fairseq checkpoint.", epilog=EPILOG
    )
    p.add_argument(
        "--from",
        nargs=2,
        required=True,
        dest="source",
        metavar=("FORMAT", "DIR"),
        help="what to read: hf-bert and a folder",
    )
    p.add_argument("--output", required=True, metavar="FILE", help="the checkpoint to write")
    p.add_argument(
        "--num-classes",
        type=int,
        metavar="N",
        help="add a classification head: the folder's pooler and a random last layer; a classifier "
        "that the folder has is always taken",
    )
    p.add_argument("--seed", type=int, default=1, help="of the weights that the folder lacks")
    p.add_argument("--force", action="store_true", help="replace files that exist")
    return p


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments.

    Raises:
        ValueError: for an unknown format, or too few classes.
    """
    args = parser().parse_args(argv)
    args.command = [NAME, *argv]
    args.format, folder = args.source
    if args.format not in FORMATS:
        raise ValueError(f"--from {args.format}: the formats known are {', '.join(FORMATS)}")
    args.folder = Path(folder)
    if not args.folder.is_dir():
        raise FileNotFoundError(f"--from {args.format} {folder}: there is no such folder")
    if args.num_classes is not None and args.num_classes < 1:
        raise ValueError(f"--num-classes ({args.num_classes}) must be 1 or more")
    return args


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    quiet_logs()
    warnings.simplefilter("ignore")  # fairseq composes with hydra's older names
    args = parse(argv)
    output = Path(args.output)
    beside = {name: output.parent / name for name in ("dict.txt", TOKENIZER)}
    report.check_outputs([output, *beside.values()], args.force)
    found = import_bert(args.folder, args.num_classes, args.seed)
    found.state["imported"] = report.provenance(args.command, args.seed)
    report.write_atomically(beside["dict.txt"], lambda file: _write_words(found, file), args.force)
    report.write_atomically(
        beside[TOKENIZER], lambda file: found.tokenizer.save(str(file)), args.force
    )
    report.write_atomically(output, lambda file: torch.save(found.state, file), args.force)
    print("\n".join(summary(found, output)))


def _write_words(found: Imported, path: Path) -> None:
    """dict.txt as fairseq reads it: without the special symbols, which it adds itself."""
    dictionary = found.dictionary
    words = [word for word in dictionary.symbols[dictionary.nspecial :] if word != MASK]
    path.write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")


def summary(found: Imported, output: Path) -> list[str]:
    """What was written, what is random, and how to go on."""
    unique = {x.data_ptr(): x.numel() for x in found.state["model"].values()}
    lines = [
        f"{output}: {report.human(sum(unique.values()))} parameters, a vocabulary of "
        f"{len(found.dictionary):,}; beside it dict.txt and {TOKENIZER}",
        f"text to words: --bpe {BPE} --hf-tokenizer {output.parent / TOKENIZER}",
    ]
    if found.fresh:
        lines.append(f"not in the folder, so random: {', '.join(found.fresh)}")
    words = [*found.flags, "--task", "sentence_prediction", *found.layout]
    lines.append(
        f"to fine-tune: fairseq-train DATA --user-dir lite_transformer_plugin {' '.join(words)} "
        f"--criterion sentence_prediction --num-classes N --finetune-from-model {output} ..."
    )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
