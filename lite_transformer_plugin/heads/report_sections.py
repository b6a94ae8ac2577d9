"""Sections of the report page: training, ablations, other data, roles."""

from collections.abc import Callable, Mapping
from typing import Any

from ..metrics import METRICS, Metric
from ..significance import Comparison
from .ablation import KINDS, Ablation
from .names import PARTS, Head, parse_heads
from .report_curve import percent
from .report_tables import (
    MISSING,
    Cell,
    escape,
    head_tables,
    minus,
    note,
    section,
    signed,
    table,
    three_digits,
)

Results = Mapping[str, Mapping[str, Any]]  # what the files hold, by their names without .json


def _dynamics(results: Results) -> str:
    """A row for each share, a column for each checkpoint."""
    rows = results["dynamics"]["dynamics"]
    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    metric = metric_in(results["dynamics"])
    scores = {(row["share"], row["checkpoint"]): f"{row[metric.name]:.2f}" for row in rows}
    lines = [
        [Cell(percent(s)), *(Cell(scores.get((s, n), MISSING)) for n in names)]
        for s in sorted({row["share"] for row in rows})
    ]
    found = table(f"{metric.label} by share pruned and checkpoint", ["share", *names], lines)
    return section("In the course of training", found)


# --- ablation -------------------------------------------------------------------------------------


def _ablation(name: str, where: str) -> Callable[[Results], str]:
    def show(results: Results) -> str:
        data = results[name]
        rows = {parse_heads(row["head"])[0]: row for row in data[name]}
        metric = metric_in(data)
        found = {h: _result(row, metric) for h, row in rows.items()}
        ablation = Ablation(data["kind"], data["base"], found, data["signature"], metric)
        how = note(f"Difference to {ablation.base:.2f}; * and bold: p < 0.01.")
        cells = {head: _difference(head, result, metric) for head, result in found.items()}
        tables = head_tables(cells, "differences")
        if ablation.kind == "all-but-one":
            tables += _best(ablation)
        signature = note(f"{metric.label}: {ablation.signature}")
        return section(f"{metric.label} {KINDS[ablation.kind]}{where}", how, tables, signature)

    return show


def metric_in(found: Mapping[str, Any]) -> Metric:
    """Which metric a file of results has; older ones do not say, and have BLEU."""
    return METRICS[found.get("metric", "bleu")]


def _result(row: Mapping[str, Any], metric: Metric) -> Comparison:
    return Comparison(row[metric.name], row["difference"], row["p"])


def _difference(head: Head, result: Comparison, metric: Metric) -> Cell:
    text = f"{head}: {metric.label} {result.score:.2f}, p = {result.p:.2g}"
    mark = {"class": "significant"} if result.significant else {}
    return Cell(signed(result.difference) + "*" * result.significant, {"title": text, **mark})


def _best(ablation: Ablation) -> str:
    """The paper's table 2."""
    best = ablation.best()
    parts = [part for part in PARTS if any(place[0] == part for place in best)]
    rows = []
    for layer in sorted({layer for _, layer in best}):
        heads = [best.get((part, layer)) for part in parts]
        cells = [
            _difference(h, ablation.results[h], ablation.metric) if h else Cell("") for h in heads
        ]
        rows.append([Cell(str(layer)), *cells])
    return table("Best head of each layer", ["layer", *parts], rows, "differences")


def _comparison(results: Results) -> str:
    """The paper's section 3.4, and its tables 5 and 6."""
    found = results["comparison"]
    text = f"Pearson r = {found['r']:.2f}, p = {found['p']:.2g}, over {found['heads']} heads."
    rows, metric = [], metric_in(found)
    for row in found["comparison"]:
        there = _result(row, metric)
        here = Cell(signed(row["difference_where_chosen"]))
        cells = [
            here,
            _difference(parse_heads(row["head"])[0], there, metric),
            Cell(f"{row['p']:.3f}"),
        ]
        rows.append([Cell(row["head"]), *cells])
    header = ["head", "where chosen", "on the other data", "p there"]
    caption = f"Best head of each layer: {metric.difference('both')}"
    return section(
        "The same heads on other data",
        f'<p class="shown">{escape(text)}</p>\n',
        table(caption, header, rows),
    )


# --- roles ----------------------------------------------------------------------------------------


def _roles(results: Results) -> str:
    """The most important heads first: do those that matter have roles?"""
    found = results["roles"]
    figures = list(found["figures"])
    rows = sorted(found["roles"], key=lambda row: -row["importance"])
    shape = three_digits(rows[0]["importance"])
    lines = []
    for row in rows:
        numbers = [MISSING if row[f] is None else minus(f"{row[f]:.2f}") for f in figures]
        words = [Cell(row[name], {"class": "text"}) for name in ("roles", "relations")]
        cells = [Cell(f"{row['importance']:{shape}}"), words[0], *map(Cell, numbers), words[1]]
        lines.append([Cell(row["head"]), *cells])
    names = [name.replace("_", " ") for name in figures]
    header = ["head", "importance", "roles", *names, "relations"]
    meanings = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(found['figures'][f])}</dd>\n"
        for name, f in zip(names, figures, strict=True)
    )
    return section(
        f"Roles of heads on {found['subset']}",
        table("Heads, the most important first", header, lines, "plain long"),
        f"<details><summary>What the figures mean</summary><dl>{meanings}</dl></details>\n",
    )


SECTIONS: dict[str, Callable[[Results], str]] = {
    "dynamics": _dynamics,
    "ablation": _ablation("ablation", ""),
    "ablation-elsewhere": _ablation("ablation-elsewhere", ", on the other data"),
    "comparison": _comparison,
    "roles": _roles,
}
