"""`fairseq-profile`: what models cost, side by side, and where the cost lies."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.models import BaseFairseqModel

from .. import build, report, tradeoff
from ..cost import Lengths, bottleneck, comparison, count, fits_phone, stored_bytes, width
from ..cost.latency import Setting, measure
from . import guarded, quiet_logs
from .profile_arguments import NAME, parse


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    args, flags = parse(argv)
    if args.user_dir:
        if not Path(args.user_dir).is_dir():
            raise FileNotFoundError(f"--user-dir {args.user_dir} is not a folder")
        utils.import_user_module(args)
    args.count_as = (Lengths(args.src_len, args.tgt_len), args.convention, not args.no_taps)
    quality = bool(args.plot) and not args.lengths
    pictures = list(tradeoff.outputs(args.plot[0]).values()) if quality else args.plot or []
    for picture in pictures:
        report.check_picture(picture)
    report.check_outputs([args.json, args.csv, *pictures], args.force)
    if args.find_width:
        find_width(args, flags)
    elif args.lengths:
        lengths(args, flags)
    elif quality:
        plot(args)
    else:
        compare(args, flags)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "source_tokens": args.src_len,
        "target_tokens": args.tgt_len,
        "convention": args.convention,
        "taps": not args.no_taps,
    }


def write(args: argparse.Namespace, name: str, rows: list[dict], **more: Any) -> None:
    """The files that were asked for."""
    if args.json:
        data = {"provenance": report.provenance(args.command, args.seed), **more, name: rows}
        report.write_json(args.json, data, args.force)
    if args.csv:
        report.write_csv(args.csv, [comparison.flat(row) for row in rows], args.force)
    wrote(*filter(None, (args.json, args.csv)))


def wrote(*paths: str | Path) -> None:
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)


def load(args: argparse.Namespace, flags: Sequence[str], weights: bool) -> dict[str, tuple]:
    """Every model by name, and the bytes its checkpoint stores."""
    found: dict[str, tuple[BaseFairseqModel, int | None]] = {}
    for path in args.path:
        model, state = build.checkpoint(path)
        found[unused(found, "/".join(Path(path).parts[-2:]))] = (
            model,
            stored_bytes(state["model"]),
        )
    for arch in args.arch:
        model = build.architecture(arch, args.vocab, flags, weights)
        found[unused(found, arch)] = (model, None)
    return found


def unused(names: dict, name: str) -> str:
    """The name, numbered if it is taken."""
    number = sum(known.partition(" (")[0] == name for known in names)
    return f"{name} ({number + 1})" if number else name


def compare(args: argparse.Namespace, flags: Sequence[str]) -> None:
    """The table of costs, and of measured times."""
    setting = Setting(
        args.count_as[0],
        args.batch_size,
        args.beam,
        args.threads,
        args.warmup,
        args.repeats,
        args.seed,
    )
    utils.set_torch_seed(args.seed)
    models = load(args, flags, weights=args.latency)
    records = [
        comparison.record(name, count(model, *args.count_as), fits_phone(model), stored)
        for name, (model, stored) in models.items()
    ]
    more: dict[str, Any] = {"settings": settings(args)}
    if args.latency:
        timings = measure({name: model for name, (model, _) in models.items()}, setting)
        comparison.add_latency(records, timings)
        more["settings"] |= {
            name: getattr(setting, name)
            for name in ("batch_size", "beam", "threads", "warmup", "repeats")
        }
    comparison.add_relative(records)
    print(heading(args))
    print(report.format_table(comparison.table(records)))
    if args.latency:
        print(
            f"ms: median and quartiles of {args.repeats} turns, {args.threads} thread(s), "
            f"batch {args.batch_size}, beam {args.beam}"
        )
    print("\n".join(comparison.notes(records)))
    write(args, "models", records, **more)


def heading(args: argparse.Namespace) -> str:
    taps = "without" if args.no_taps else "with"
    return (
        f"{args.src_len} source and {args.tgt_len} target tokens, convention {args.convention}, "
        f"{taps} convolution taps"
    )


def find_width(args: argparse.Namespace, flags: Sequence[str]) -> None:
    """The widths that meet a budget, and the flags that give them."""
    budget = report.parse_count(args.find_width)
    rows, lines, commands = [], [["", "width", "Mult-Adds", "off budget"]], []
    for arch in args.arch:
        family = width.Family(arch, args.vocab, flags, *args.count_as)
        nearest, within = width.find_width(family, budget)
        for label, found in (("nearest", nearest), ("within budget", within)):
            words = [*flags, *family.command_line(found)]
            off = found.cost.mult_adds / budget - 1
            lines.append(
                [
                    f"{arch}, {label}",
                    str(found.embed_dim),
                    report.human(found.cost.mult_adds),
                    f"{100 * off:+.1f} %",
                ]
            )
            rows.append(
                {
                    "architecture": arch,
                    "choice": label,
                    "budget": budget,
                    "embed_dim": found.embed_dim,
                    "mult_adds": found.cost.mult_adds,
                    "flags": " ".join(words),
                }
            )
        commands.append(f"nearest: --arch {arch} {rows[-2]['flags']}")
    print(heading(args))
    print(report.format_table(lines))
    print("\n".join(commands))
    write(args, "widths", rows, settings=settings(args))


def lengths(args: argparse.Namespace, flags: Sequence[str]) -> None:
    """Shares of the parts over length, as table and picture."""
    steps = bottleneck.length_range(args.lengths)
    if args.path or args.arch:
        models = {name: model for name, (model, _) in load(args, flags, weights=False).items()}
        rows = bottleneck.shares(models, steps, *args.count_as[1:])
    else:
        rows = bottleneck.layer_shares(args.embed_dim, steps, *args.count_as[1:])
        print(f"one encoder layer of {args.embed_dim} channels; {bottleneck.AS_WRITTEN}")
    print(report.format_table(bottleneck.table(rows)))
    write(args, "shares", rows, settings=settings(args))
    if args.plot:
        report.save_figure(bottleneck.draw(rows), args.plot[0], args.force)
        wrote(args.plot[0])


def plot(args: argparse.Namespace) -> None:
    """Published and measured quality over Mult-Adds, and what the search for a model cost."""
    measured = tradeoff.read_results(args.plot[1:])
    paths = tradeoff.draw(args.plot[0], measured, args.force)
    print(report.format_table(tradeoff.search_cost_table()))
    wrote(*paths)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    quiet_logs()
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
