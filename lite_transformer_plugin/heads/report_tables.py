"""Tables of the report page: heads in the layout of the paper's appendix, and plain rows.

All text that is not ours is escaped here, so that a path with < or & in it is shown as it is.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .names import PARTS, Head

MISSING = "\N{EN DASH}"


class Cell(NamedTuple):
    """Text, and attributes of its <td>."""

    text: str
    attributes: Mapping[str, str] = {}


def escape(text: Any) -> str:
    return html.escape(str(text))


def signed(value: float) -> str:
    """Two decimals and a sign, but none before zero."""
    figure = f"{value:+.2f}"
    return figure.lstrip("+-") if float(figure) == 0 else minus(figure)


def minus(figure: str) -> str:
    return figure.replace("-", "\N{MINUS SIGN}")


def three_digits(largest: float) -> str:
    """The format of figures up to the largest, which all get as many decimals."""
    if not 0 < largest < math.inf:
        return ".2f"
    decimals = 2 - math.floor(math.log10(largest))
    return f".{max(0, decimals)}f" if decimals <= 4 else ".1e"


def head_tables(cells: Mapping[Head, Cell], kind: str) -> str:
    """A table for each part: rows are layers, columns heads. A head that is not there is blank."""
    parts = [part for part in PARTS if any(head.part == part for head in cells)]
    tables = "".join(f"<div>{_head_table(cells, part, kind)}</div>" for part in parts)
    return f'<div class="parts">{tables}</div>\n'


def _head_table(cells: Mapping[Head, Cell], part: str, kind: str) -> str:
    heads = [head for head in cells if head.part == part]
    numbers = sorted({head.head for head in heads})
    rows = []
    for layer in sorted({head.layer for head in heads}):
        found = [cells.get(Head(part, layer, number), Cell("")) for number in numbers]
        rows.append([Cell(str(layer)), *found])
    return table(f"{part}: {PARTS[part]}", ["layer", *map(str, numbers)], rows, kind)


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], kind: str = "plain"
) -> str:
    """A table in a box that scrolls where the page is narrower; first cells name their rows."""
    name = escape(caption)
    top = "".join(map(_heading, header, rows[0]))
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return (
        f'<h3>{name}</h3><div class="scroll" role="region" aria-label="{name}" tabindex="0">'
        f'<table class="{kind}" aria-label="{name}">\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _heading(text: str, below: Cell) -> str:
    """It is aligned as what stands below it."""
    kind = below.attributes.get("class")
    return f'<th scope="col"{" class=text" if kind == "text" else ""}>{escape(text)}</th>'


def _row(cells: Sequence[Cell]) -> str:
    first, *others = cells
    return f'<th scope="row">{escape(first.text)}</th>' + "".join(map(_data, others))


def _data(cell: Cell) -> str:
    attributes = "".join(f' {name}="{escape(v)}"' for name, v in cell.attributes.items())
    return f"<td{attributes}>{escape(cell.text)}</td>"


def section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{''.join(content)}</section>\n"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'
