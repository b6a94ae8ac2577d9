"""The curve of the report page: the score over the share pruned, as SVG, and what its slider shows.

Rows are those of curve.json, with the figure of the metric as ``score``, too; a label says what
it is.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .names import parse_heads
from .report_tables import Cell, escape, signed, table

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 14, 44  # margins


def points(rows: Sequence[Mapping[str, Any]], heads: int, label: str) -> list[dict[str, Any]]:
    """For each row of curve.json: what is gone, in words, and where it lies in the picture.

    Args:
        heads: number of those that could go; 0 where it is not known.
    """
    top = _top(rows)
    found = []
    for row in rows:
        x, y = _place(row["share"], row["score"], top)
        removed = [str(head) for head in parse_heads(row["pruned_heads"])]
        found.append(
            {"x": x, "y": y, "text": _text(row, rows[0], heads, label), "removed": removed}
        )
    return found


def _text(row: Mapping[str, Any], first: Mapping[str, Any], heads: int, label: str) -> str:
    number = f"{row['heads_removed']}{f' of {heads}' if heads else ''} heads"
    text = f"{percent(row['share'])} pruned: {number} removed, {label} {row['score']:.2f}"
    if row is first or first["heads_removed"]:
        return text
    return f"{text} ({signed(row['score'] - first['score'])})"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _top(rows: Sequence[Mapping[str, Any]]) -> float:
    """The upper end of the axis: a round number."""
    highest = max(row["score"] for row in rows)
    return max(1, math.ceil(highest / _step(highest))) * _step(highest)


def _step(highest: float) -> float:
    """Between ticks, so that there are three to six."""
    return next((step for step in (1, 2, 5, 10) if highest <= 5 * step), 20)


def _place(share: float, score: float, top: float) -> tuple[float, float]:
    x = LEFT + share * (WIDTH - LEFT - RIGHT)
    y = HEIGHT - BOTTOM - score / top * (HEIGHT - TOP - BOTTOM)
    return round(x, 1), round(y, 1)


def svg(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """The picture, with a marker on its first point."""
    top = _top(rows)
    places = [_place(row["share"], row["score"], top) for row in rows]
    line = " ".join(f"{x},{y}" for x, y in places)
    dots = "".join(f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>' for x, y in places)
    x, y = places[0]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label} over the share of heads pruned; a table below has its figures">\n'
        f'{_axes(top, label)}\n<polyline points="{line}"/>{dots}\n'
        f'<circle id="marker" cx="{x}" cy="{y}" r="7"/>\n</svg>\n'
    )


def _axes(top: float, score: str) -> str:
    lines, step = [], _step(top)
    for i in range(round(top / step) + 1):
        x, y = _place(0, i * step, top)
        end = WIDTH - RIGHT
        lines.append(f'<line class="grid" x1="{x}" x2="{end}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{i * step:g}</text>')
    for i in range(0, 101, 20):
        x, y = _place(i / 100, 0, top)
        lines.append(f'<text x="{x}" y="{y + 17}" text-anchor="middle">{i}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = "share of heads pruned (%)"
    lines.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    upright = f'transform="rotate(-90)" x="-{(TOP + HEIGHT - BOTTOM) / 2}" y="13"'
    lines.append(f'<text {upright} text-anchor="middle">{score}</text>')
    return "\n".join(lines)


def figures(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """The curve as a table."""
    cells = [
        [
            Cell(percent(row["share"])),
            Cell(str(row["heads_removed"])),
            Cell(f"{row['score']:.2f}"),
            Cell(row["pruned_heads"], {"class": "text"}),
        ]
        for row in rows
    ]
    header = ["share", "heads removed", label, "which"]
    return f"<details><summary>{escape('The curve as a table')}</summary>" + (
        f"{table(f'{label} by share pruned', header, cells)}</details>\n"
    )
