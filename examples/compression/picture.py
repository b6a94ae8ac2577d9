"""Curves of curve.py in one picture: BLEU and loss over how much smaller the file is.

    python picture.py OUTPUT FOLDER...

Writes OUTPUT.png and OUTPUT.svg. A panel for each folder, with its BLEU above and its loss below.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_transformer_plugin import report
from lite_transformer_plugin.cli import guarded, quiet_logs
from lite_transformer_plugin.heads import pictures

Curve = Mapping[str, Any]  # what curve.json holds
BARE = 32  # bits of a weight without a code


def read(folder: str) -> Curve:
    """
    Raises:
        ValueError: if curve.py has written nothing there.
    """
    path = Path(folder) / "curve.json"
    if not path.is_file():
        raise ValueError(f"{path} is not there: let curve.py write it first")
    return json.loads(path.read_text(encoding="utf-8"))


def draw(curves: Sequence[Curve], lowest: float) -> Any:
    """One column a curve, its scores above its losses; scores below ``lowest`` are left out."""
    figure = report.new_figure(4.2 * len(curves) + 1.0, 7.0)
    panels = figure.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False)
    for curve, column in zip(curves, panels.T, strict=True):
        column[0].set_title(curve["name"])
        for panel, score in zip(column, ("bleu", "loss"), strict=True):
            _draw_lines(panel, curve["points"], score, lowest)
        column[1].set_xlabel("times smaller than 4 bytes a parameter, whole file")
    panels[0, 0].set_ylabel("BLEU")
    panels[1, 0].set_ylabel("validation loss")
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw_lines(panel: Any, points: Sequence[Mapping], score: str, lowest: float) -> None:
    lines = defaultdict(list)
    for point in points:
        if point[score] is not None and (point["bleu"] or lowest) >= lowest:
            lines[point["zeros"]].append(point)
    for i, (zeros, line) in enumerate(sorted(lines.items())):
        x, y = ([point[name] for point in line] for name in ("ratio", score))
        style = {"color": pictures.HUES[i], "marker": pictures.MARKERS[i], "markersize": 5}
        panel.plot(x, y, label=f"{zeros:.0%} zeros", linewidth=1.6, **style)
        for point in line:
            text = "" if point["bits"] == BARE else str(point["bits"])
            place = (point["ratio"], point[score])
            panel.annotate(text, place, (3, 4), textcoords="offset points", fontsize=8)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def run(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", metavar="OUTPUT")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--lowest", type=float, default=0, help="leave points of less BLEU out")
    parser.add_argument("--force", action="store_true", help="replace the pictures")
    args = parser.parse_args(argv)
    figure = draw([read(folder) for folder in args.folders], args.lowest)
    figure.suptitle("Bits of a code (at the points) and zeros")
    pictures.save(figure, args.output, args.force)


if __name__ == "__main__":
    quiet_logs()
    sys.exit(guarded("picture.py", run, sys.argv[1:]))
