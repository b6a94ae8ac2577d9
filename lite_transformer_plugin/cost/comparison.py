"""What models cost, side by side: as records for JSON and CSV, and as a table for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..report import human, human_bytes
from .counting import PARTS, PLACES, Cost
from .latency import Timing

Record = dict[str, Any]
COMPARED = ("parameters", "parameters_without_embeddings", "bytes_fp32", "mult_adds")
BYTES_OF_FLOAT = 4


def record(name: str, cost: Cost, fits_phone: bool, bytes_stored: int | None = None) -> Record:
    """Everything about one model, in plain numbers."""
    return {
        "name": name,
        "parameters": cost.parameters,
        "parameters_without_embeddings": cost.parameters_without_embeddings,
        "bytes_fp32": BYTES_OF_FLOAT * cost.parameters,
        "bytes_stored": bytes_stored,
        "mult_adds": cost.mult_adds,
        "parameters_by_place": cost.parameters_by("place"),
        "parameters_by_part": cost.parameters_by("part"),
        "mult_adds_by_place": cost.mult_adds_by("place"),
        "mult_adds_by_part": cost.mult_adds_by("part"),
        "fits_phone": fits_phone,
        "uncounted": list(cost.uncounted),
    }


def add_latency(records: Sequence[Record], timings: Mapping[str, Mapping[str, Timing]]) -> None:
    """Put measured milliseconds into the records, in place."""
    for row in records:
        row["latency_ms"] = {
            kind: {name: round(ms, 3) for name, ms in asdict(timing).items()}
            for kind, timing in timings[row["name"]].items()
        }


def add_relative(records: Sequence[Record]) -> None:
    """Put every figure's ratio to the first model's into the records, in place."""
    first = records[0]
    for row in records:
        row["relative"] = {name: _ratio(row[name], first[name]) for name in COMPARED}
        for kind, timing in row.get("latency_ms", {}).items():
            reference = first["latency_ms"].get(kind)
            if reference is not None:
                row["relative"][kind] = _ratio(timing["median"], reference["median"])


def _ratio(value: float, reference: float) -> float | None:
    return round(value / reference, 4) if reference else None


def flat(row: Record) -> dict[str, Any]:
    """A record as one line of CSV: nested names are joined by a dot."""
    line: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            line |= {f"{name}.{inner}": v for inner, v in flat(value).items()}
        elif isinstance(value, list):
            line[name] = "; ".join(value)
        else:
            line[name] = value
    return line


# --- the table ------------------------------------------------------------------------------------


def table(records: Sequence[Record]) -> list[list[str]]:
    """A column for every model, and one for its ratio to the first."""
    rows = [_line("", records, lambda row: row["name"], "relative")]
    for label, name, show in (
        ("parameters", "parameters", human),
        ("  without embeddings", "parameters_without_embeddings", human),
        ("bytes as float32", "bytes_fp32", human_bytes),
        ("Mult-Adds", "mult_adds", human),
    ):
        rows.append(_line(label, records, _shower(name, show), name))
    if any(row["bytes_stored"] is not None for row in records):
        rows.insert(4, _line("bytes as stored", records, _shower("bytes_stored", human_bytes)))
    for what, label in (("parameters", "share of parameters"), ("mult_adds", "share of Mult-Adds")):
        rows.append(_line(label, records, lambda row: ""))
        for group, names in (("place", PLACES), ("part", PARTS)):
            rows += _shares(records, f"{what}_by_{group}", names, rows)
    rows.append(_line("fits a phone", records, lambda row: "yes" if row["fits_phone"] else "no"))
    kinds = dict.fromkeys(kind for row in records for kind in row.get("latency_ms", {}))
    rows += [_line(f"{kind}, ms", records, _timer(kind), kind) for kind in kinds]
    return rows


def _line(
    label: str, records: Sequence[Record], show: Callable[[Record], str], relative: str = ""
) -> list[str]:
    cells = [label]
    for i, row in enumerate(records):
        cells.append(show(row))
        if i > 0:
            ratio = row["relative"].get(relative)
            empty = relative if relative == "relative" else ""
            cells.append(f"{ratio:.2f}x" if ratio is not None else empty)
    return cells


def _shower(name: str, show: Callable[[float], str]) -> Callable[[Record], str]:
    return lambda row: "-" if row[name] is None else show(row[name])


def _timer(kind: str) -> Callable[[Record], str]:
    def show(row: Record) -> str:
        timing = row["latency_ms"].get(kind)
        if timing is None:
            return "-"
        return f"{timing['median']:.1f} ({timing['lower']:.1f} to {timing['upper']:.1f})"

    return show


def _shares(
    records: Sequence[Record], group: str, names: Sequence[str], shown: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Parts that no model has are left out, and so is one that the group before already named."""
    heading = max(i for i, line in enumerate(shown) if line[0].startswith("share"))
    named = {line[0].strip() for line in shown[heading:]}
    lines = []
    for name in names:
        if name not in named and any(row[group][name] for row in records):
            lines.append(_line(f"  {name}", records, _percentage(group, name)))
    return lines


def _percentage(group: str, name: str) -> Callable[[Record], str]:
    def show(row: Record) -> str:
        total = sum(row[group].values())
        return f"{100 * row[group][name] / total:.1f} %" if row[group][name] else "-"

    return show


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader of the table must know."""
    lines = [
        "fits a phone: under 500M Mult-Adds and 10M parameters without embeddings, at 30 tokens "
        "and as the paper counts both"
    ]
    for row in records:
        own = row["parameters_by_part"]["output"]
        if own:
            lines.append(
                f"{row['name']}: 'without embeddings' has {human(own)} parameters of an output "
                "layer that shares no embeddings; the paper prints IWSLT's parameters this way, "
                "WMT's, whose output is tied, not"
            )
        if row["uncounted"]:
            lines.append(
                f"{row['name']}: Mult-Adds not counted, for want of a rule: "
                + "; ".join(row["uncounted"])
            )
    return lines
