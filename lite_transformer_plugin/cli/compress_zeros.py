"""How many zeros `fairseq-compress` puts where: --sparsity, --target-ratio and --max-loss."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..compression import allocate, fill_in, sensitivity
from ..results_folder import ResultsFolder
from .compress_trial import Trial

MOST = 0.8  # zeros in any tensor: the largest share that is measured
GRID = 0.05  # of the shares between which --target-ratio and --max-loss choose

Shares = dict[str, float]  # of zeros, by the name of a weight


class Zeros:
    """Finds the shares; what it measures is remembered in the results folder."""

    def __init__(
        self,
        args: argparse.Namespace,
        trial: Trial,
        folder: ResultsFolder,
        base: Mapping[str, Any],
    ):
        """
        Args:
            base: loss and BLEU of the model as it was.
        """
        self.args, self.trial, self.folder, self.base = args, trial, folder, base
        self._costs: dict[str, dict[float, float]] = {}

    def shares(self) -> Shares:
        """The share of zeros in each weight; none if none are asked for.

        Raises:
            ValueError: if what is asked for cannot be met, saying what can.
        """
        args = self.args
        if args.sparsity:
            return self.allocated(args.sparsity)
        if args.target_ratio:
            return self.search(self.reaches, least=True)
        if args.max_loss is not None:
            return self.search(self.keeps, least=False)
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

    def allocated(self, share: float) -> Shares:
        """Shares of the weights that make this share of all, at the least cost.

        Raises:
            ValueError: if no weights may have so many zeros.
        """
        if share > MOST:
            raise ValueError(f"--sparsity {share:g}: at most {MOST:g} can be zeros")
        if not self._costs:
            self._costs = {name: fill_in(costs) for name, costs in self.costs().items()}
        numbers = {name: self.trial.tensors[name].numel() for name in self.trial.weights}
        return allocate(self._costs, numbers, share * sum(numbers.values()))

    # --- searches ---------------------------------------------------------------------------------

    def search(self, suits: Callable[[Shares], bool], least: bool) -> Shares:
        """The least share of all that suits, or the largest, by halving.

        Raises:
            ValueError: if none does.
        """
        steps = round(MOST / GRID)
        low, high = 0, steps
        easy, hard = (high, low) if least else (low, high)
        if not suits(self.at(easy)):
            self.refuse(self.at(easy))
        if suits(self.at(hard)):
            return self.at(hard)
        while high - low > 1:
            middle = (low + high) // 2
            if suits(self.at(middle)) == least:
                high = middle
            else:
                low = middle
        return self.at(high if least else low)

    def at(self, step: int) -> Shares:
        return self.allocated(step * GRID) if step else {}

    def reaches(self, shares: Shares) -> bool:
        return self.ratio(shares) >= self.args.target_ratio

    def keeps(self, shares: Shares) -> bool:
        return self.lost(shares) <= self.args.max_loss

    def ratio(self, shares: Shares) -> float:
        return self.trial.bytes_of(self.trial.coded(self.args.bits, shares))["ratio"]

    def lost(self, shares: Shares) -> float:
        """Points of BLEU, or of the loss."""
        trial = self.trial
        zeros = sum(shares.get(n, 0) * trial.tensors[n].numel() for n in trial.weights)
        key = f"{zeros:.0f} zeros, {self.args.bits} bits"
        known = self.folder.known("lost")
        if key not in known:
            trial.put_in(trial.coded(self.args.bits, shares))
            bleu = trial.bleu()
            if bleu is None:
                known[key] = trial.loss() - self.base["loss"]
            else:
                known[key] = self.base["bleu"] - bleu
            self.folder.remember("lost", key, known[key])
            print(f"{key}: {known[key]:.2f} lost", file=sys.stderr, flush=True)
        return known[key]

    def refuse(self, shares: Shares) -> None:
        args, bits = self.args, f"{self.args.bits} bits" if self.args.bits else "no --bits"
        if args.target_ratio:
            raise ValueError(
                f"--target-ratio {args.target_ratio:g} cannot be met: {bits} and {MOST:.0%} zeros "
                f"reach {self.ratio(shares):.2f}; fewer bits reach more"
            )
        raise ValueError(
            f"--max-loss {args.max_loss:g} cannot be met: {bits} without zeros lose "
            f"{self.lost(shares):.2f}; more bits lose less"
        )
