"""`fairseq-compress`: zeros where they cost least, codes of few bits, one file; measured each time.

A row of steps on one opened model: as it is, with zeros, with codes, as read back from the file.
What each has measured stays in the results folder, and a command that was stopped goes on there.
"""

import argparse
import hashlib
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from omegaconf import DictConfig

from .. import build, checkpoint_files, report
from ..compression import KEY, Coded, expand, sizes, unpack
from ..compression.quantize import rounded
from ..results_folder import ResultsFolder, claim
from . import guarded, quiet_logs
from .average_checkpoints import save
from .compress_arguments import NAME, parse, settings
from .compress_sizes import baseline
from .compress_trial import Trial, is_quantised, is_trained_on, open_trial
from .compress_zeros import Zeros
from .fine_tuning import fine_tuning_command

PARTS = ("embeddings", "weights", "positions", "codebooks", "plain", "settings")


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    quiet_logs()
    warnings.simplefilter("ignore")
    args, cfg = parse(argv)
    utils.import_user_module(cfg.common)
    check_output(args)
    with open(args.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    refuse_twice(args)
    claim(args.results_dir, settings(args, digest), args.force)
    Compression(args, cfg, [NAME, *argv]).run()


def check_output(args: argparse.Namespace) -> None:
    """
    Raises:
        OSError: if the file could not be written, before any work is done.
    """
    report.check_outputs([args.output], args.force)
    need, free = Path(args.path).stat().st_size, shutil.disk_usage(Path(args.output).parent).free
    if free < need // 2:
        raise OSError(
            f"{Path(args.output).parent} has {report.human_bytes(free)} left, the file may take "
            f"{report.human_bytes(need // 2)}"
        )


def refuse_twice(args: argparse.Namespace) -> None:
    """
    Raises:
        ValueError: if the model has codes already and nothing is left to do.
    """
    state = checkpoint_files.read(args.path)
    if not is_quantised(state):
        zeros = args.sparsity or args.target_ratio or args.max_loss is not None
        if args.bits is None and not zeros:
            raise ValueError("nothing to do: give --bits, or --sparsity and the like")
        return
    asked = args.bits, args.sparsity, args.target_ratio, args.max_loss
    if any(x is not None for x in asked) or not is_trained_on(state):
        raise ValueError(
            f"{args.path} is compressed already: start from the checkpoint it was made from, or "
            "give one that was trained on, without --bits and zeros, to round its values"
        )


class Compression:
    """The steps, and the table that grows with them."""

    def __init__(self, args: argparse.Namespace, cfg: DictConfig, command: list[str]):
        self.args, self.command = args, command
        self.folder = ResultsFolder(args.results_dir)
        self.trial: Trial = open_trial(args, cfg)
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        trial, bits = self.trial, self.args.bits
        if is_quantised(trial.state):
            self.add("as trained", trial.bytes_of(unpack(trial.state["model"][KEY])))
            coded = {n: rounded(c) for n, c in unpack(trial.state["model"][KEY]).items()}
            coded = {name: coded[owner] for name, owner in trial.owner.items()}
            trial.put_in(coded)
            self.add("rounded", trial.bytes_of(coded))
        else:
            self.add("fp32", baseline(trial.tensors))
            shares = Zeros(self.args, trial, self.folder, self.rows[0]).shares()
            coded = trial.coded(None, shares)
            if shares:
                trial.put_in(coded)
                self.add("with zeros", trial.bytes_of(coded))
            if bits:
                coded = trial.coded(bits, shares)
                trial.put_in(coded)
                self.add(f"{bits} bits", trial.bytes_of(coded))
        self.write(coded)

    # --- results ----------------------------------------------------------------------------------

    def add(self, step: str, counts: Mapping[str, float]) -> None:
        """Measure the model as it is, and print the table so far."""
        known = self.folder.known("measured")
        if step not in known:
            known[step] = {"loss": self.trial.loss(), "bleu": self.trial.bleu()}
            self.folder.remember("measured", step, known[step])
            self.folder.remember("signature", "bleu", self.trial.signature)
        self.rows.append({"step": step, **counts, **known[step]})
        print(table(self.rows), end="\n\n", flush=True)

    def write(self, coded: Mapping[str, Coded]) -> None:
        """The file; then see that what it expands to is what was measured."""
        args = self.args
        state = self.trial.checkpoint(coded)
        state["compression"] = report.provenance(self.command)
        report.write_atomically(args.output, lambda file: save(state, file), args.force)
        model, _ = build.checkpoint(args.output)
        for name, tensor in model.state_dict().items():
            if not torch.equal(tensor, expand(coded[name])):
                raise AssertionError(f"{name} of {args.output} is not what was measured")
        made = report.provenance(self.command)
        rows = [{name: row.get(name) for name in COLUMNS} for row in self.rows]
        signature = self.folder.known("signature").get("bleu")
        more = {"signature": signature, "parts": parts_of(state)}
        data = {"provenance": made, **more, "steps": rows}
        report.write_json(self.folder.path("compression.json"), data, force=True)
        report.write_csv(self.folder.path("compression.csv"), rows, force=True)
        size = report.human_bytes(Path(args.output).stat().st_size)
        print(f"{args.output}: {size}, read back bit for bit")
        print(f"train it on: {fine_tuning_command(args.output, args.data)}")


def parts_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each tensor takes in the file."""
    return [
        {"tensor": name, "bits": part.bits, "weights": part.weights, "of": part.numel}
        | {"positions": part.positions, "values": part.values, "codes": part.codes}
        for name, part in sizes(state["model"][KEY]).items()
        if not part.same_as
    ]


COLUMNS = ("step", "bytes", *PARTS, "ratio", "authors_bytes", "authors_ratio", "loss", "bleu")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """KB by part; the ratio of the whole file, and that of the authors' count; loss and BLEU."""
    head = ["step", "KB", *PARTS, "ratio", "authors' KB", "ratio", "loss", "BLEU"]
    lines = [head]
    for row in rows:
        parts = [f"{row.get(name, 0) / 1e3:.1f}" for name in ("bytes", *PARTS)]
        theirs = [f"{row['authors_bytes'] / 1e3:.1f}", f"{row['authors_ratio']:.2f}"]
        bleu = "-" if row["bleu"] is None else f"{row['bleu']:.2f}"
        lines.append([row["step"], *parts, f"{row['ratio']:.2f}", *theirs, f"{row['loss']:.4f}"])
        lines[-1].append(bleu)
    return report.format_table(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
