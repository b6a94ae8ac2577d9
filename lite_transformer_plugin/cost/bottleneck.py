"""Where the work goes as sentences grow: the bottleneck argument (Wu et al. 2020, section 3).

With an FFN of 4d the paper writes a layer's work as 4Nd^2 + N^2 d for attention and 2 x 4Nd^2 for
the FFN, so the FFN dominates short sentences; a flat FFN of d leaves more of it to attention.
Tables here count the scores and the weighted values, 2 N^2 d together, as all of the paper's
figures do; `written_share` follows its text.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from .. import build, report
from .counting import count
from .rules import Lengths

AS_WRITTEN = "'attention as written': with N^2 d for scores and values, as the paper's text has it"
SHOWN = {
    "attention": "#b2182b",
    "convolution": "#2166ac",
    "cross-attention": "#e08214",
    "FFN": "#4d4d4d",
    "output": "#7fbf7b",
}


def length_range(text: str) -> list[int]:
    """``10:1000`` -> 10, 20, 50, 100, 200, 500, 1000.

    Raises:
        ValueError: if it is not two lengths, at least 1, in order.
    """
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise ValueError(
            f"--lengths {text!r}: give the first and the last length, at least 1, as 10:1000"
        )
    low, high = int(first), int(last)
    between = [digit * 10**power for power in range(len(last)) for digit in (1, 2, 5)]
    return sorted({low, high, *(n for n in between if low < n < high)})


def written_share(length: int, embed_dim: int, ffn_ratio: int) -> float:
    """Attention's share as the paper's text has it: (4Nd^2 + N^2 d) of that and 2 x ratio Nd^2."""
    attention = 4 * embed_dim + length  # both divided by N d
    return attention / (attention + 2 * ffn_ratio * embed_dim)


LAYERS = {  # name -> architecture, FFN channels by embedding size
    "attention, 4d FFN": ("transformer", 4),
    "attention, flat FFN": ("transformer", 1),
    "LSRA, flat FFN": ("lite_transformer", 1),
}


def layers(embed_dim: int) -> dict[str, nn.Module]:
    """One encoder layer each: with a 4d FFN, with a flat FFN, and with LSRA and a flat FFN."""
    found = {}
    for name, (arch, ratio) in LAYERS.items():
        flags = ["--encoder-layers", "1", "--decoder-layers", "1"]
        flags += ["--encoder-embed-dim", str(embed_dim)]
        flags += ["--encoder-ffn-embed-dim", str(ratio * embed_dim)]
        if arch == "lite_transformer":  # of the usual kernels the widest, where most layers are
            flags += ["--encoder-kernel-size-list", "31"]
        model = build.architecture(arch, build.SPECIAL_SYMBOLS + 1, flags, weights=False)
        found[name] = model.encoder.layers[0]
    return found


def shares(
    models: dict[str, nn.Module], lengths: Sequence[int], convention: str, taps: bool
) -> list[dict[str, Any]]:
    """One row for every model and length: Mult-Adds, and the share of every part in them."""
    rows = []
    for name, model in models.items():
        for length in lengths:
            cost = count(model, Lengths(length, length), convention, taps)
            parts = cost.mult_adds_by("part")
            row = {"model": name, "length": length, "mult_adds": cost.mult_adds}
            rows.append(row | {part: parts[part] / cost.mult_adds for part in SHOWN})
    return rows


def layer_shares(
    embed_dim: int, lengths: Sequence[int], convention: str, taps: bool
) -> list[dict[str, Any]]:
    """`shares` of the three layers, with attention's share as the paper writes it beside."""
    rows = shares(layers(embed_dim), lengths, convention, taps)
    for row in rows:
        arch, ratio = LAYERS[row["model"]]
        written = arch == "transformer"
        share = written_share(row["length"], embed_dim, ratio) if written else None
        row["attention_as_written"] = share
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text; parts that no model has are left out."""
    parts = [part for part in SHOWN if any(row[part] for row in rows)]
    lines = [["model", "length", "Mult-Adds", *parts]]
    extra = any("attention_as_written" in row for row in rows)
    if extra:
        lines[0].append("attention as written")
    for row in rows:
        line = [row["model"], str(row["length"]), report.human(row["mult_adds"])]
        line += [f"{100 * row[part]:.1f} %" if row[part] else "-" for part in parts]
        if extra:
            written = row.get("attention_as_written")
            line.append("-" if written is None else f"{100 * written:.1f} %")
        lines.append(line)
    return lines


def draw(rows: Sequence[dict[str, Any]]):
    """A panel for every model: shares over length."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure = report.new_figure(1.2 + 3.4 * len(names), 3.6)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        _panel(panel, name, [row for row in rows if row["model"] == name])
    panels[0].set_ylabel("share of Mult-Adds (%)")
    return figure


def _panel(panel, name: str, rows: Sequence[dict[str, Any]]) -> None:
    lengths = [row["length"] for row in rows]
    for part, colour in SHOWN.items():
        values = [100 * row[part] for row in rows]
        if any(values):
            panel.plot(lengths, values, color=colour, label=part, marker=".", linewidth=1.8)
    written = [row.get("attention_as_written") for row in rows]
    if None not in written:
        values = [100 * value for value in written]
        panel.plot(
            lengths, values, color=SHOWN["attention"], linestyle=":", label="attention as written"
        )
    panel.set(title=name, xscale="log", xlabel="tokens in the sentence", ylim=(0, 100))
    report.plain_ticks(panel)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize="small")
