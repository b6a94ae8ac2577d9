"""Quality over Mult-Adds: published points, and beside them those measured here.

The published figures come from `published.json` alone; a measured point is a row of a result file:

    {"results": [{"benchmark": "iwslt14_de_en", "model": "my lite transformer",
                  "mult_adds": 54140000, "score": 30.5, "test_set": "optional, if another"}]}
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from . import report
from .cost import PHONE_MULT_ADDS

Row = dict[str, Any]
STYLES = {  # model -> how it is called, colour, marker
    "transformer": ("Transformer", "#4d4d4d", "o"),
    "lightconv": ("LightConv", "#2166ac", "s"),
    "lite_transformer": ("Lite Transformer", "#b2182b", "o"),
    "evolved_transformer": ("Evolved Transformer", "#e08214", "D"),
}
MEASURED = ("#1b7837", "#762a83", "#01665e", "#8c510a", "#c51b7d")
NEEDED = {"benchmark": str, "model": str, "mult_adds": int, "score": (int, float)}


@cache
def published() -> dict[str, Any]:
    """The data file of published figures."""
    file = resources.files(__package__) / "published.json"
    return json.loads(file.read_text(encoding="utf-8"))


def benchmarks() -> dict[str, Row]:
    return published()["benchmarks"]


def read_results(paths: Sequence[str | Path]) -> list[Row]:
    """The measured points of result files.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if one is not a result file, naming what is missing.
    """
    return [_checked(path, row) for path in paths for row in _rows(Path(path))]


def _rows(path: Path) -> list[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: give a JSON file with results")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    rows = data.get("results") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(
            f'{path} holds no results: a list "results" of objects with {", ".join(NEEDED)}'
        )
    return rows


def _checked(path: str | Path, row: Any) -> Row:
    for name, kind in NEEDED.items():
        value = row.get(name) if isinstance(row, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{path}: every result needs {', '.join(NEEDED)}; {name} is {value!r}")
    if row["benchmark"] not in benchmarks():
        raise ValueError(
            f"{path}: unknown benchmark {row['benchmark']!r}, not one of {', '.join(benchmarks())}"
        )
    if row["mult_adds"] < 1:
        raise ValueError(f"{path}: mult_adds ({row['mult_adds']}) must be at least 1")
    return row


# --- pictures -------------------------------------------------------------------------------------


def outputs(path: str | Path) -> dict[str | None, Path]:
    """Files that `draw` writes: all benchmarks in ``path`` (None), and each in its own."""
    path = Path(path)
    each = {name: path.with_name(f"{path.stem}-{name}{path.suffix}") for name in benchmarks()}
    return {None: path, **each}


def draw(path: str | Path, measured: Sequence[Row] = (), force: bool = False) -> list[Path]:
    """Write the pictures of all benchmarks; returns their paths."""
    files = outputs(path)
    for benchmark, file in files.items():
        figure = _sheet(measured) if benchmark is None else _single(benchmark, measured)
        report.save_figure(figure, file, force)
    return list(files.values())


def _sheet(measured: Sequence[Row]):
    figure = report.new_figure(11, 8)
    for panel, benchmark in zip(figure.subplots(2, 2).flat, benchmarks(), strict=True):
        _panel(panel, benchmark, measured)
    return figure


def _single(benchmark: str, measured: Sequence[Row]):
    if benchmark != "wmt16_en_de":
        figure = report.new_figure(6.4, 4.6)
        _panel(figure.subplots(), benchmark, measured)
        return figure
    figure = report.new_figure(6.4, 6.2)
    figure.get_layout_engine().set(h_pad=0.12)
    picture, table = figure.subplots(2, 1, height_ratios=[3, 1])
    _panel(picture, benchmark, measured)
    _search_cost(table)
    return figure


def _panel(panel, benchmark: str, measured: Sequence[Row]) -> None:
    about = benchmarks()[benchmark]
    points = [row for row in published()["quality"] if row["benchmark"] == benchmark]
    for model, (label, colour, marker) in STYLES.items():
        line = sorted(
            (report.parse_count(row["mult_adds"]) / 1e6, row["score"])
            for row in points
            if row["model"] == model
        )
        if line:
            style = dict(color=colour, marker=marker, linewidth=1.5, markersize=6)
            style["linestyle"] = "-" if len(line) > 1 else "none"
            panel.plot(*zip(*line, strict=True), label=f"{label}, published", **style)
    _measured_points(panel, [row for row in measured if row["benchmark"] == benchmark])
    panel.axvline(PHONE_MULT_ADDS / 1e6, color="#2166ac", linestyle="--", linewidth=1)
    panel.annotate(
        "mobile: 500M",
        (PHONE_MULT_ADDS / 1e6, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        color="#2166ac",
        fontsize="small",
    )
    better = "" if about["better"] == "higher" else " (lower is better)"
    panel.set(title=about["title"], ylabel=about["score"] + better, xscale="log")
    panel.set_xlabel(f"Mult-Adds for {about['tokens']} tokens (M)")
    report.plain_ticks(panel)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize="small")


def _measured_points(panel, rows: Sequence[Row]) -> None:
    labels = list(dict.fromkeys(_label(row) for row in rows))
    for i, label in enumerate(labels):
        line = sorted(
            (row["mult_adds"] / 1e6, row["score"]) for row in rows if _label(row) == label
        )
        panel.plot(
            *zip(*line, strict=True),
            label=label,
            color=MEASURED[i % len(MEASURED)],
            marker="*",
            markersize=13,
            markerfacecolor="white",
            markeredgewidth=1.5,
            linestyle=":",
        )


def _label(row: Row) -> str:
    where = f" on {row['test_set']}" if row.get("test_set") else ""
    return f"{row['model']}, measured here{where}"


def search_cost_table() -> list[list[str]]:
    """What finding and training the models of WMT En-De took, as published."""
    lines = [["WMT En-De, published", "Mult-Adds", "BLEU", "GPU hours", "CO2 (lb)", "cloud ($)"]]
    for row in published()["search_cost"]:
        sums = [f"{row[name]:,}" for name in ("gpu_hours", "co2_pounds", "cloud_dollars")]
        lines.append([STYLES[row["model"]][0], row["mult_adds"], f"{row['score']:.1f}", *sums])
    return lines


def _search_cost(panel) -> None:
    panel.axis("off")
    panel.set_title("what it took to find and train them", fontsize="medium")
    header, *rows = search_cost_table()
    cells = panel.table(
        rows, colLabels=header, colWidths=[0.3, 0.14, 0.1, 0.16, 0.14, 0.16], loc="center"
    )
    cells.auto_set_font_size(False)
    cells.set_fontsize(8)
    cells.scale(1, 1.4)
    for (_, column), cell in cells.get_celld().items():
        cell.set_edgecolor("#bbbbbb")
        cell.set_text_props(ha="left" if column == 0 else "right")
