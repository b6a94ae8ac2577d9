"""Checkpoints of a chain side by side: bytes by both counts, validation loss, BLEU on two splits.

    python table.py DATA NAME=CKPT... --output STEM [flags of fairseq-generate]

Writes STEM.csv and STEM.json. A compressed file counts with every byte, any other checkpoint with 4
bytes a parameter; the authors of Lite Transformer count weights that are no embeddings, without
codebooks and positions.
"""

import sys
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils

from lite_transformer_plugin import report
from lite_transformer_plugin.cli import guarded, quiet_logs
from lite_transformer_plugin.cli.compress_arguments import parse
from lite_transformer_plugin.cli.compress_sizes import baseline
from lite_transformer_plugin.cli.compress_trial import Trial, is_quantised, open_trial
from lite_transformer_plugin.compression import KEY, is_packed, unpack

COLUMNS = ("name", "bytes", "ratio", "authors_bytes", "authors_ratio", "loss", "valid", "test")


def split_words(argv: Sequence[str]) -> tuple[dict[str, str], str, list[str]]:
    """Checkpoints by name, the stem of the output, and the words that are fairseq's.

    Raises:
        ValueError: if there is no checkpoint or no stem.
    """
    words, checkpoints = list(argv), {}
    if "--output" not in words[:-1]:
        raise ValueError("--output STEM is missing: where shall the table go?")
    place = words.index("--output")
    stem = words[place + 1]
    del words[place : place + 2]
    for word in [word for word in words if "=" in word and word[0] != "-"]:
        name, path = word.split("=", 1)
        if not Path(path).is_file():
            raise ValueError(f"{word}: there is no checkpoint {path}")
        checkpoints[name] = path
        words.remove(word)
    if not checkpoints:
        raise ValueError("name checkpoints as NAME=CKPT")
    return checkpoints, stem, words


def measure(args: Namespace, cfg: Any) -> tuple[dict[str, Any], str | None]:
    """Sizes, loss and BLEU on valid, BLEU on test; and BLEU's signature."""
    found: dict[str, Any] = {}
    for split in ("valid", "test"):
        cfg.dataset.gen_subset = split
        trial = open_trial(args, cfg)
        if split == "valid":
            found |= size(trial, args.path) | {"loss": trial.loss()}
        found[split] = trial.bleu()
    return found, trial.signature


def size(trial: Trial, path: str) -> Mapping[str, float]:
    if is_packed(trial.state["model"]) and is_quantised(trial.state):
        coded = unpack(trial.state["model"][KEY])
        whole = Path(path).stat().st_size
        numbers = sum(tensor.numel() for tensor in trial.tensors.values())
        return trial.bytes_of(coded) | {"bytes": whole, "ratio": 4 * numbers / whole}
    return baseline(trial.tensors)


def run(argv: Sequence[str]) -> None:
    checkpoints, stem, words = split_words(argv)
    report.check_outputs([f"{stem}.csv", f"{stem}.json"], "--force" in words)
    rows: list[dict[str, Any]] = []
    for name, path in checkpoints.items():
        args, cfg = parse([*words, "--path", path, "--output", f"{stem}.pt"])
        utils.import_user_module(cfg.common)
        found, signature = measure(args, cfg)
        rows.append({key: ({"name": name} | found)[key] for key in COLUMNS})
        print(report.format_table(text(rows)), end="\n\n", flush=True)
    force = "--force" in words
    made = {"provenance": report.provenance(["table.py", *argv]), "signature": signature}
    report.write_csv(f"{stem}.csv", rows, force)
    report.write_json(f"{stem}.json", made | {"rows": rows}, force)


def text(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    head = ["", "KB", "ratio", "authors' KB", "ratio", "loss", "BLEU, valid", "test"]
    first = rows[0]
    lines = [head]
    for row in rows:
        kilobytes = [row["bytes"] / 1e3, first["bytes"] / row["bytes"]]
        theirs = [row["authors_bytes"] / 1e3, first["authors_bytes"] / row["authors_bytes"]]
        figures = [*kilobytes, *theirs, row["loss"], row["valid"], row["test"]]
        lines.append([row["name"], *("-" if f is None else f"{f:.2f}" for f in figures)])
    return lines


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    quiet_logs()
    warnings.simplefilter("ignore")
    return guarded("table.py", run, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
