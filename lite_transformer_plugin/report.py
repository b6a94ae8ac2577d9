"""What a command leaves behind: tables, CSV, JSON that says how it was made, pictures.

Files appear whole or not at all, and none is overwritten unasked.
"""

import csv
import io
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAIRSEQ_DISTRIBUTIONS = ("ve-fairseq", "fairseq-fixed", "fairseq")  # all import as fairseq
UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}

# --- numbers --------------------------------------------------------------------------------------


def human(number: float) -> str:
    """Three or four digits and a unit: 86.7M, 1.34G, 950."""
    for unit in ("G", "M", "K"):
        scaled = number / UNITS[unit]
        if scaled >= 0.9995:
            return f"{scaled:.1f}{unit}" if scaled >= 9.995 else f"{scaled:.2f}{unit}"
    return f"{number:.0f}"


def human_bytes(number: float) -> str:
    """Megabytes of 10^6 bytes, or kilobytes of 10^3."""
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.1f} KB"


def parse_count(text: str) -> int:
    """Read 54M, 1.3G, 1e8 or 54000000.

    Raises:
        ValueError: if it is not a positive number with an optional unit K, M or G.
    """
    digits = text.strip().upper()
    unit = digits[-1:] if digits[-1:] in ("K", "M", "G") else ""
    try:
        value = float(digits.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e18:
        raise ValueError(f"{text!r} is not a count: write 54M, 1.3G or 54000000")
    return round(value)


# --- tables ---------------------------------------------------------------------------------------


def format_table(rows: Sequence[Sequence[str]], header: bool = True) -> str:
    """Plain text columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    if header:
        lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a row; columns are those of the first row, and of later ones where it has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- files ----------------------------------------------------------------------------------------


def check_outputs(paths: Iterable[str | Path | None], force: bool = False) -> None:
    """Refuse, before any work is done, what could not be written afterwards.

    Raises:
        FileExistsError, FileNotFoundError, IsADirectoryError: naming the path and the remedy.
    """
    for path in map(Path, filter(None, paths)):
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: give the name of a file in it")
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists: choose another name, or --force to replace it")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")


def write_atomically(path: str | Path, write: Callable[[Path], None], force: bool = False) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then give it that name."""
    path = Path(path)
    check_outputs([path], force)
    # the suffix stays: savefig, for one, chooses its format by it
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are for their owner only
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, data: Any, force: bool = False) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"), force)


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]], force: bool = False) -> None:
    text = format_csv(rows)
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"), force)


def provenance(command: Sequence[str], seed: int | None = None) -> dict[str, Any]:
    """How a result was made: command, versions, seed, date."""
    return {
        "command": list(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    from lite_transformer_plugin import __version__

    found = {"python": platform.python_version(), "lite-transformer-plugin": __version__}
    for name in ("torch", *FAIRSEQ_DISTRIBUTIONS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# --- pictures -------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> "Figure":
    """An empty matplotlib figure, in inches, that needs no display.

    Raises:
        ModuleNotFoundError: naming the extra that brings matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib: pip install lite-transformer-plugin[plots]"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: str | Path) -> None:
    """Refuse a file name that no picture can have."""
    if Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"{path} must end in {', '.join(PICTURES)}: that chooses its format")


# of each format what would have the date in it: the same figure shall give the same bytes
DATES = {".png": (), ".svg": ("Date",), ".pdf": ("CreationDate",)}


def save_figure(figure: "Figure", path: str | Path, force: bool = False) -> None:
    """Write a picture; written again with the same matplotlib it has the same bytes."""
    from matplotlib import rc_context

    check_picture(path)
    undated = dict.fromkeys(DATES[Path(path).suffix.lower()])
    with rc_context({"svg.hashsalt": "lite-transformer-plugin"}):  # else its ids are random
        write_atomically(path, lambda f: figure.savefig(f, dpi=150, metadata=undated), force)


def plain_ticks(panel: "Axes") -> None:
    """50, 100, 200 ... on a logarithmic x axis instead of powers of ten, as far as it reaches."""
    low, high = panel.get_xlim()
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
