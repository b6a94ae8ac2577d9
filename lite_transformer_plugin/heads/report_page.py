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

from . import report_curve
from .heat_maps import FAR
from .names import Head, parse_heads
from .report_sections import SECTIONS, Results, metric_in
from .report_tables import MISSING, Cell, escape, head_tables, note, section, three_digits

TEMPLATE = Path(__file__).with_suffix(".html")


def page(folder: str | Path) -> str:
    """HTML of a results folder; the same text whenever the folder holds the same.

    Raises:
        ValueError: if there is no result in it.
    """
    results = read(folder)
    if not results:
        raise ValueError(f"{folder} holds no results: there is nothing to report")
    title = f"Attention heads of {_model(results)}"
    others = [show(results) for name, show in SECTIONS.items() if name in results]
    parts = {
        "title": escape(title),
        "body": _pruning(results) + "".join(others),
        "provenance": _provenance(results),
        "data": _inline(_points(results)),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def read(folder: str | Path) -> Results:
    """The results that have a place in the page."""
    names = ("importance", "curve", *SECTIONS)
    paths = {name: Path(folder) / f"{name}.json" for name in names}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def _inline(data: Any) -> str:
    """JSON that no text in it can end early: HTML reads no escapes in a script."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
        found.append(note(f"Found {', '.join(names)}; seed {how['seed']}; {versions}."))
    return "".join(found)


# --- importance and curve -------------------------------------------------------------------------


def _pruning(results: Results) -> str:
    """What the slider moves stands beside it, and it leaves the page together with that."""
    shown = [show(results) for name, show in BOTH.items() if name in results]
    slider = _slider(_points(results))
    return f'<div class="pruning">\n{slider}{"".join(shown)}</div>\n' if shown else ""


def _importance(results: Results) -> str:
    found = results["importance"]
    scores = {parse_heads(row["head"])[0]: row["importance"] for row in found["importance"]}
    low, high = _ends(scores)
    shape = three_digits(high)
    cells = {head: _score(head, score, low, high, shape) for head, score in scores.items()}
    norm = "divided by the norm of each layer" if found["normalised"] else "not normalised"
    how = note(
        f"Per {found['unit']}, {norm}. Colours go from {low:{shape}} (palest) to {high:{shape}}"
        f"{' and more' if max(scores.values()) > high else ''} (strongest)."
        f"{' Struck heads are removed.' if len(_points(results)) > 1 else ''}"
    )
    return section("Importance of heads", how, head_tables(cells, "heat"))


def _ends(scores: Mapping[Head, float]) -> tuple[float, float]:
    """Of the scale of colours; a few scores far outside the others do not stretch it."""
    known = sorted(filter(math.isfinite, scores.values())) or [0.0]
    usual = FAR * known[int(0.95 * (len(known) - 1))]
    return known[0], min(known[-1], usual) if usual > known[0] else known[-1]


def _score(head: Head, score: float, low: float, high: float, shape: str) -> Cell:
    named = {"data-head": str(head), "title": f"{head}: {score:.4g}"}
    if not math.isfinite(score):
        return Cell(MISSING, named)
    level = min(1.0, (score - low) / (high - low)) if high > low else 0.0
    return Cell(f"{score:{shape}}", {**named, "style": f"--level: {100 * level:.0f}%"})


def _points(results: Results) -> list[dict[str, Any]]:
    if "curve" not in results:
        return []
    rows = results.get("importance", {}).get("importance", [])
    heads = sum(row["head"][0] in results["curve"]["parts"] for row in rows)
    return report_curve.points(_scored(results["curve"]), heads, metric_in(results["curve"]).label)


def _scored(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = metric_in(found).name
    return [{**row, "score": row[name]} for row in found["curve"]]


def _curve(results: Results) -> str:
    found, points = results["curve"], _points(results)
    again = ", measured anew before each step" if found["reestimated"] else ""
    how = note(f"Heads of {', '.join(found['parts'])} removed by {found['order']}{again}.")
    label = metric_in(found).label
    title, signature = f"{label} without heads", note(f"{label}: {found['signature']}")
    if len(points) < 2:
        text = f'<p class="shown">{escape(points[0]["text"])}</p>\n'
        return section(title, text, signature)
    rows = _scored(found)
    picture = report_curve.svg(rows, label)
    table = report_curve.figures(rows, label)
    return section(title, how, picture, table, signature)


def _slider(points: list[dict[str, Any]]) -> str:
    """It walks through the points of the curve, which may lie at uneven shares."""
    if len(points) < 2:
        return ""
    return (
        '<div class="slider"><label for="share">Share of heads pruned</label>\n'
        f'<input type="range" id="share" min="0" max="{len(points) - 1}" step="1" value="0" '
        'autocomplete="off">\n<output id="shown" class="shown" for="share" aria-live="off">'
        f"{escape(points[0]['text'])}</output></div>\n"
    )


BOTH: dict[str, Callable[[Results], str]] = {"importance": _importance, "curve": _curve}
