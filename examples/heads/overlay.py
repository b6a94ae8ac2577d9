"""Curves of several runs of fairseq-prune-heads in one picture and one table.

    python overlay.py OUTPUT FOLDER...

Writes OUTPUT.png, OUTPUT.svg and OUTPUT.csv. A curve has its folder's name; folders NAME-1, NAME-2,
... are one curve, their mean, in a band from the lowest to the highest.
"""

import argparse
import csv
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lite_transformer_plugin import report
from lite_transformer_plugin.cli import quiet_logs
from lite_transformer_plugin.heads import pictures

Scores = Mapping[float, Sequence[float]]  # BLEU of each run, by the share of heads removed


def read(folders: Sequence[str]) -> dict[str, Scores]:
    """BLEU by name and share.

    Raises:
        ValueError: if a folder has no curve.
    """
    found: dict[str, dict[float, list[float]]] = {}
    for folder in folders:
        path = Path(folder) / "curve.csv"
        if not path.is_file():
            raise ValueError(f"{path} is not there: let fairseq-prune-heads write it first")
        scores = found.setdefault(re.sub(r"-\d+$", "", Path(folder).name), defaultdict(list))
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            scores[float(row["share"])].append(float(row["bleu"]))
    return found


def draw(found: Mapping[str, Scores], title: str, output: str) -> None:
    series = {
        name: [(share, statistics.mean(bleu)) for share, bleu in scores.items()]
        for name, scores in found.items()
    }
    bands = {
        name: [(share, min(bleu), max(bleu)) for share, bleu in scores.items()]
        for name, scores in found.items()
        if any(len(bleu) > 1 for bleu in scores.values())
    }
    unpruned = {bleu[0] for scores in found.values() for share, bleu in scores.items() if not share}
    level = unpruned.pop() if len(unpruned) == 1 else None
    pictures.save(pictures.curves(series, title, level, bands), output, force=True)


def table(found: Mapping[str, Scores]) -> list[dict[str, float | str]]:
    """A row for each share, a column for each curve."""
    shares = sorted({share for scores in found.values() for share in scores})
    return [
        {"share": share}
        | {
            name: round(statistics.mean(scores[share]), 2) if share in scores else ""
            for name, scores in found.items()
        }
        for share in shares
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", metavar="OUTPUT", help="without .png, .svg or .csv")
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="results of a run")
    parser.add_argument("--title", default="Removing attention heads")
    args = parser.parse_args()
    quiet_logs()
    try:
        found = read(args.folders)
    except ValueError as error:
        parser.error(str(error))
    draw(found, args.title, args.output)
    rows = table(found)
    report.write_csv(f"{args.output}.csv", rows, force=True)
    print(report.format_table([list(rows[0]), *([str(v) for v in row.values()] for row in rows)]))


if __name__ == "__main__":
    main()
