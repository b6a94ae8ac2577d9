"""What each number of bits and each share of zeros costs, and how small the file gets.

    python curve.py DATA --path CKPT --results-dir FOLDER [--name "heads removed"]
        [--shares 0,0.2,0.4] [--widths 8,6,5,4,3] [flags of fairseq-compress]

FOLDER receives curve.csv and curve.json; a command that was stopped goes on there. `picture.py`
draws one folder or several.
"""

import hashlib
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils

from lite_transformer_plugin import report
from lite_transformer_plugin.cli import guarded, quiet_logs
from lite_transformer_plugin.cli.compress_arguments import parse, settings
from lite_transformer_plugin.cli.compress_trial import Trial, open_trial
from lite_transformer_plugin.cli.compress_zeros import MOST, Zeros
from lite_transformer_plugin.compression import check_bits
from lite_transformer_plugin.results_folder import ResultsFolder, claim

OWN = {"--name": "", "--shares": "0,0.2,0.4,0.6,0.8", "--widths": "8,6,5,4,3"}
COLUMNS = ("zeros", "bits", "bytes", "ratio", "authors_ratio", "loss", "bleu")


def own_flags(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The three flags of this script, and the words that are fairseq-compress's."""
    found, words = dict(OWN), list(argv)
    for flag in OWN:
        if flag in words:
            place = words.index(flag)
            if place + 1 == len(words):
                raise ValueError(f"{flag} needs a value")
            found[flag] = words[place + 1]
            del words[place : place + 2]
    return found, words


def grid(flags: dict[str, str]) -> list[tuple[float, int | None]]:
    """Pairs of a share of zeros and the bits of a code, None for weights as they are.

    Raises:
        ValueError: for words that are no such numbers.
    """
    try:
        shares = [float(word) for word in flags["--shares"].split(",")]
        widths = [int(word) for word in flags["--widths"].split(",")]
    except ValueError:
        raise ValueError("--shares and --widths are numbers with commas between them") from None
    for share in shares:
        if not 0 <= share <= MOST:
            raise ValueError(f"--shares {share:g}: from 0 to {MOST:g} of the weights can be zeros")
    return [(share, bits) for share in shares for bits in (None, *map(check_bits, widths))]


def points(
    args: Namespace, trial: Trial, folder: ResultsFolder, pairs: Sequence[tuple[float, int | None]]
) -> Iterator[dict[str, Any]]:
    """Each point's size, loss and BLEU; those that the folder knows are not measured again."""
    zeros = Zeros(args, trial, folder, {})
    for share, bits in pairs:
        key, known = f"{share:g} {bits or 32}", folder.known("point")
        if key not in known:
            coded = trial.coded(bits, zeros.allocated(share) if share else {})
            trial.put_in(coded)
            measured = {"loss": trial.loss(), "bleu": trial.bleu()}
            known[key] = {"zeros": share, "bits": bits or 32, **trial.bytes_of(coded), **measured}
            folder.remember("point", key, known[key])
            folder.remember("signature", "bleu", trial.signature)
        yield {name: known[key][name] for name in COLUMNS}


def run(argv: Sequence[str]) -> None:
    flags, words = own_flags(argv)
    pairs = grid(flags)
    if "--results-dir" not in words:
        raise ValueError("--results-dir FOLDER is missing: where shall the curve go?")
    output = str(Path(words[words.index("--results-dir") + 1]) / "curve.pt")  # is not written
    args, cfg = parse([*words, "--output", output])
    utils.import_user_module(cfg.common)
    digest = hashlib.sha256(Path(args.path).read_bytes()).hexdigest()
    claim(args.results_dir, settings(args, digest), args.force)
    folder, trial, rows = ResultsFolder(args.results_dir), open_trial(args, cfg), []
    for row in points(args, trial, folder, pairs):
        rows.append(row)
        print(" ".join(f"{k} {v:.4g}" for k, v in row.items() if v is not None), flush=True)
    made = report.provenance(["curve.py", *argv])
    name = flags["--name"] or Path(args.results_dir).name
    data = {"name": name, "signature": folder.known("signature").get("bleu"), "provenance": made}
    report.write_csv(folder.path("curve.csv"), rows, force=True)
    report.write_json(folder.path("curve.json"), data | {"points": rows}, force=True)


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    quiet_logs()
    warnings.simplefilter("ignore")
    return guarded("curve.py", run, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
