"""`fairseq-compress`: zeros where they cost least, codes of few bits, one file; measured each time.

A row of steps on one opened model: as it is, with zeros, with codes, as read back from the file.
What each has measured stays in the results folder, and a command that was stopped goes on there.
"""

import argparse
import hashlib
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from omegaconf import DictConfig

from .. import build, checkpoint_files, report
from ..compression import KEY, Coded, allocate, expand, fill_in, sensitivity, unpack
from ..compression.quantize import rounded
from ..results_folder import ResultsFolder, claim
from . import guarded, quiet_logs
from .average_checkpoints import save
from .compress_arguments import NAME, parse, settings
from .compress_trial import Trial, is_quantised, is_trained_on, open_trial
from .fine_tuning import fine_tuning_command

PARTS = ("embeddings", "weights", "positions", "codebooks", "plain", "settings")
MOST = 0.8  # zeros in any tensor: the largest share that is measured
GRID = 0.05  # of the shares between which --target-ratio and --max-loss choose


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
        if args.bits is None and not (args.sparsity or args.target_ratio or args.max_loss):
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
            self.add("fp32", trial.baseline())
            shares = self.shares()
            coded = trial.coded(None, shares)
            if shares:
                trial.put_in(coded)
                self.add("with zeros", trial.bytes_of(coded))
            if bits:
                coded = trial.coded(bits, shares)
                trial.put_in(coded)
                self.add(f"{bits} bits", trial.bytes_of(coded))
        self.write(coded)

    # --- zeros ------------------------------------------------------------------------------------

    def shares(self) -> dict[str, float]:
        """The share of zeros in each weight; none if none are asked for."""
        args = self.args
        if args.sparsity:
            return self.allocated(args.sparsity)
        if args.target_ratio:
            return self.search(self.reaches, "smaller", least=True)
        if args.max_loss is not None:
            return self.search(self.keeps, "larger", least=False)
        return {}

    def costs(self) -> dict[str, dict[float, float]]:
        """What shares of zeros in each weight alone cost; measured once, in about a minute."""
        trial, known = self.trial, self.folder.known("sensitivity")
        own, base = trial.model.state_dict(keep_vars=True), None
        trial.put_in(trial.coded())  # not what a search has left there
        for i, name in enumerate(trial.weights, 1):
            if name not in known:
                base = trial.loss(few=True) if base is None else base
                found = sensitivity(own[name], lambda: trial.loss(few=True), base)
                known[name] = {f"{share:g}": cost for share, cost in found.items()}
                self.folder.remember("sensitivity", name, known[name])
            note = f"sensitivity {i} of {len(trial.weights)}: {name}"
            print(note, file=sys.stderr, flush=True)
        return {name: {float(s): c for s, c in known[name].items()} for name in trial.weights}

    def allocated(self, share: float) -> dict[str, float]:
        """Shares of the weights that make this share of all, at the least cost.

        Raises:
            ValueError: if no weights may have so many zeros.
        """
        if share > MOST:
            raise ValueError(f"--sparsity {share:g}: at most {MOST:g} can be zeros")
        if not hasattr(self, "_costs"):
            self._costs = {name: fill_in(costs) for name, costs in self.costs().items()}
        numbers = {name: self.trial.tensors[name].numel() for name in self.trial.weights}
        return allocate(self._costs, numbers, share * sum(numbers.values()))

    def search(self, suits: Callable[[dict], bool], kind: str, least: bool) -> dict[str, float]:
        """The least share of zeros that suits, or the largest, by halving."""
        steps = round(MOST / GRID)
        low, high = 0, steps  # suits(low) is not least, suits(high) is least
        ends = high if least else low
        if not suits(self._at(ends)):
            self.refuse(self._at(ends))
        if suits(self._at(steps - ends)):
            return self._at(steps - ends)
        while high - low > 1:
            middle = (low + high) // 2
            if suits(self._at(middle)) == least:
                high = middle
            else:
                low = middle
        return self._at(high if least else low)

    def _at(self, step: int) -> dict[str, float]:
        return self.allocated(step * GRID) if step else {}

    def reaches(self, shares: Mapping[str, float]) -> bool:
        coded = self.trial.coded(self.args.bits, shares)
        return self.trial.bytes_of(coded)["ratio"] >= self.args.target_ratio

    def keeps(self, shares: Mapping[str, float]) -> bool:
        return self.lost(shares) <= self.args.max_loss

    def lost(self, shares: Mapping[str, float]) -> float:
        """Points of BLEU, or of the loss."""
        trial = self.trial
        zeros = sum(shares.get(n, 0) * trial.tensors[n].numel() for n in trial.weights)
        key = f"{zeros:.0f} zeros, {self.args.bits} bits"
        known = self.folder.known("lost")
        if key not in known:
            trial.put_in(trial.coded(self.args.bits, shares))
            base = self.rows[0]
            bleu = trial.bleu()
            known[key] = trial.loss() - base["loss"] if bleu is None else base["bleu"] - bleu
            self.folder.remember("lost", key, known[key])
            print(f"{key}: {known[key]:.2f} lost", file=sys.stderr, flush=True)
        return known[key]

    def refuse(self, shares: Mapping[str, float]) -> None:
        args, bits = self.args, f"{self.args.bits} bits" if self.args.bits else "no --bits"
        if args.target_ratio:
            ratio = self.trial.bytes_of(self.trial.coded(args.bits, shares))["ratio"]
            raise ValueError(
                f"--target-ratio {args.target_ratio:g} cannot be met: {bits} and {MOST:.0%} zeros "
                f"reach {ratio:.2f}; fewer bits reach more"
            )
        raise ValueError(
            f"--max-loss {args.max_loss:g} cannot be met: {bits} without zeros lose "
            f"{self.lost(shares):.2f}; more bits lose less"
        )

    # --- results ----------------------------------------------------------------------------------

    def add(self, step: str, sizes: Mapping[str, float]) -> None:
        """Measure the model as it is, and print the table so far."""
        known = self.folder.known("measured")
        if step not in known:
            known[step] = {"loss": self.trial.loss(), "bleu": self.trial.bleu()}
            self.folder.remember("measured", step, known[step])
            self.folder.remember("signature", "bleu", self.trial.signature)
        self.rows.append({"step": step, **sizes, **known[step]})
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
    from ..compression import sizes

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
        sizes = [f"{row.get(name, 0) / 1e3:.1f}" for name in ("bytes", *PARTS)]
        theirs = [f"{row['authors_bytes'] / 1e3:.1f}", f"{row['authors_ratio']:.2f}"]
        bleu = "-" if row["bleu"] is None else f"{row['bleu']:.2f}"
        lines.append([row["step"], *sizes, f"{row['ratio']:.2f}", *theirs, f"{row['loss']:.4f}"])
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
