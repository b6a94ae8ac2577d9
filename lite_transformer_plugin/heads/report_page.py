"""One self-contained page of what `fairseq-prune-heads` has found, made from its JSON files.

It shows each result that is in the folder. Its slider strikes the heads that are gone at a share.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..scoring import Comparison
from . import report_curve
from .ablation import KINDS, Ablation
from .heat_maps import FAR
from .names import PARTS, Head, parse_heads
from .report_tables import MISSING, Cell, escape, head_tables, signed, table

TEMPLATE = Path(__file__).with_suffix(".html")
Results = Mapping[str, Mapping[str, Any]]  # what the files hold, by their names without .json


def page(folder: str | Path) -> str:
    """HTML of a results folder; the same text whenever the folder holds the same.

    Raises:
        ValueError: if there is no result in it.
    """
    results = read(folder)
    if not results:
        raise ValueError(f"{folder} holds no results: there is nothing to report")
    title = f"Attention heads of {_model(results)}"
    parts = {
        "title": escape(title),
        "body": "".join(show(results) for name, show in SECTIONS.items() if name in results),
        "provenance": _provenance(results),
        "data": _inline(_points(results)),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def read(folder: str | Path) -> Results:
    """The results that have a place in the page."""
    paths = {name: Path(folder) / f"{name}.json" for name in SECTIONS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def _inline(data: Any) -> str:
    """JSON that no text in it can end early: HTML reads no escapes in a script."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(title: str, *content: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>\n{"".join(content)}</section>\n'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


# --- how it was made ------------------------------------------------------------------------------


def _model(results: Results) -> str:
    command = next(iter(results.values()))["provenance"]["command"]
    words = [part for word in command for part in word.split("=", 1)]
    paths = words[words.index("--path") + 1 :] if "--path" in words else []
    return "/".join(Path(paths[0]).parts[-2:]) if paths else "several checkpoints"


def _provenance(results: Results) -> str:
    """Each command that the results come from, and which these are."""
    made: dict[str, list[str]] = {}
    for name, result in results.items():
        made.setdefault(json.dumps(result["provenance"]), []).append(name)
    found = []
    for text, names in made.items():
        how = json.loads(text)
        versions = ", ".join(f"{name} {version}" for name, version in how["versions"].items())
        found.append(f"<pre><code>{escape(shlex.join(how['command']))}</code></pre>\n")
        found.append(_note(f"Found {', '.join(names)}; seed {how['seed']}; {versions}."))
    return "".join(found)


# --- importance and curve -------------------------------------------------------------------------


def _importance(results: Results) -> str:
    found = results["importance"]
    scores = {parse_heads(row["head"])[0]: row["importance"] for row in found["importance"]}
    low, high = _ends(scores)
    cells = {head: _score(head, score, low, high) for head, score in scores.items()}
    norm = "divided by the norm of each layer" if found["normalised"] else "not normalised"
    note = _note(
        f"Per {found['unit']}, {norm}. Colours go from {low:.3g} (palest) to {high:.3g} (strongest)"
        f"{' and more' if max(scores.values()) > high else ''}."
    )
    return _section("Importance of heads", note, head_tables(cells, "heat"))


def _ends(scores: Mapping[Head, float]) -> tuple[float, float]:
    """Of the scale of colours; a few scores far outside the others do not stretch it."""
    known = sorted(filter(math.isfinite, scores.values())) or [0.0]
    usual = FAR * known[int(0.95 * (len(known) - 1))]
    return known[0], min(known[-1], usual) if usual > known[0] else known[-1]


def _score(head: Head, score: float, low: float, high: float) -> Cell:
    named = {"data-head": str(head), "title": f"{head}: {score:.4g}"}
    if not math.isfinite(score):
        return Cell(MISSING, named)
    level = min(1.0, (score - low) / (high - low)) if high > low else 0.0
    return Cell(f"{score:.3g}", {**named, "style": f"--level: {100 * level:.0f}%"})


def _points(results: Results) -> list[dict[str, Any]]:
    if "curve" not in results:
        return []
    rows = results.get("importance", {}).get("importance", [])
    heads = sum(row["head"][0] in results["curve"]["parts"] for row in rows)
    return report_curve.points(results["curve"]["curve"], heads)


def _curve(results: Results) -> str:
    found, points = results["curve"], _points(results)
    again = ", measured anew before each step" if found["reestimated"] else ""
    how = _note(f"Heads of {', '.join(found['parts'])} removed by {found['order']}{again}.")
    signature = _note(f"BLEU: {found['signature']}")
    if len(points) < 2:
        text = f'<p class="shown">{escape(points[0]["text"])}</p>\n'
        return _section("BLEU without heads", text, signature)
    rows = found["curve"]
    picture = report_curve.svg(rows)
    return _slider(points) + _section(
        "BLEU without heads", how, picture, report_curve.figures(rows), signature
    )


def _slider(points: list[dict[str, Any]]) -> str:
    """It walks through the points of the curve, which may lie at uneven shares."""
    return (
        '<div class="slider"><label for="share">Share of heads pruned</label>\n'
        f'<input type="range" id="share" min="0" max="{len(points) - 1}" step="1" value="0" '
        'autocomplete="off">\n<output id="shown" class="shown" for="share" aria-live="off">'
        f"{escape(points[0]['text'])}</output></div>\n"
    )


def _dynamics(results: Results) -> str:
    """A row for each share, a column for each checkpoint."""
    rows = results["dynamics"]["dynamics"]
    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    bleu = {(row["share"], row["checkpoint"]): f"{row['bleu']:.2f}" for row in rows}
    lines = [
        [Cell(report_curve.percent(s)), *(Cell(bleu.get((s, n), MISSING)) for n in names)]
        for s in sorted({row["share"] for row in rows})
    ]
    found = table("BLEU by share pruned and checkpoint", ["share", *names], lines)
    return _section("In the course of training", found)


# --- ablation -------------------------------------------------------------------------------------


def _ablation(name: str, where: str) -> Callable[[Results], str]:
    def show(results: Results) -> str:
        data = results[name]
        rows = {parse_heads(row["head"])[0]: row for row in data[name]}
        found = {h: Comparison(r["bleu"], r["difference"], r["p"]) for h, r in rows.items()}
        ablation = Ablation(data["kind"], data["base"], found, data["signature"])
        note = _note(f"Difference to {ablation.base:.2f}; * and bold: p < 0.01.")
        cells = {head: _difference(head, result) for head, result in found.items()}
        tables = head_tables(cells, "differences")
        if ablation.kind == "all-but-one":
            tables += _best(ablation)
        signature = _note(f"BLEU: {ablation.signature}")
        return _section(f"BLEU {KINDS[ablation.kind]}{where}", note, tables, signature)

    return show


def _difference(head: Head, result: Comparison) -> Cell:
    text = f"{head}: BLEU {result.score:.2f}, p = {result.p:.2g}"
    mark = {"class": "significant"} if result.significant else {}
    return Cell(signed(result.difference) + "*" * result.significant, {"title": text, **mark})


def _best(ablation: Ablation) -> str:
    """The paper's table 2."""
    best = ablation.best()
    parts = [part for part in PARTS if any(place[0] == part for place in best)]
    rows = []
    for layer in sorted({layer for _, layer in best}):
        heads = [best.get((part, layer)) for part in parts]
        cells = [_difference(h, ablation.results[h]) if h else Cell("") for h in heads]
        rows.append([Cell(str(layer)), *cells])
    return table("Best head of each layer", ["layer", *parts], rows, "differences")


def _comparison(results: Results) -> str:
    """The paper's section 3.4, and its tables 5 and 6."""
    found = results["comparison"]
    text = f"Pearson r = {found['r']:.2f}, p = {found['p']:.2g}, over {found['heads']} heads."
    rows = []
    for row in found["comparison"]:
        there = Comparison(row["bleu"], row["difference"], row["p"])
        here = Cell(signed(row["difference_where_chosen"]))
        cells = [here, _difference(parse_heads(row["head"])[0], there), Cell(f"{row['p']:.2g}")]
        rows.append([Cell(row["head"]), *cells])
    header = ["head", "where chosen", "on the other data", "p there"]
    caption = "Best head of each layer: difference in BLEU on both"
    return _section(
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
    lines = []
    for row in rows:
        numbers = [MISSING if row[f] is None else f"{row[f]:.2f}" for f in figures]
        words = [Cell(row[name], {"class": "text"}) for name in ("roles", "relations")]
        cells = [Cell(f"{row['importance']:.3g}"), words[0], *map(Cell, numbers), words[1]]
        lines.append([Cell(row["head"]), *cells])
    names = [name.replace("_", " ") for name in figures]
    header = ["head", "importance", "roles", *names, "relations"]
    meanings = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(found['figures'][f])}</dd>\n"
        for name, f in zip(names, figures, strict=True)
    )
    return _section(
        f"Roles of heads on {found['subset']}",
        table("Heads, the most important first", header, lines, "plain long"),
        f"<details><summary>What the figures mean</summary><dl>{meanings}</dl></details>\n",
        kind="wide",
    )


SECTIONS: dict[str, Callable[[Results], str]] = {
    "importance": _importance,
    "curve": _curve,
    "dynamics": _dynamics,
    "ablation": _ablation("ablation", ""),
    "ablation-elsewhere": _ablation("ablation-elsewhere", ", on the other data"),
    "comparison": _comparison,
    "roles": _roles,
}
