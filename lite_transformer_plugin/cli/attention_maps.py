"""`fairseq-attention-maps`: what the heads of a model look at, in pictures and figures."""

import argparse
import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig
from torch import Tensor

import lite_transformer_plugin

from .. import report
from ..heads import diagonal
from ..heads.attention_maps import watch
from ..heads.map_sheets import Block, Panel, map_sheet
from ..heads.names import PARTS, Head, Place, attentions, check_heads, check_parts, parse_heads
from ..texts import Reader, Reading, open_reader
from . import Parser, guarded, quiet_logs

NAME = "fairseq-attention-maps"
EPILOG = """Flags of fairseq-interactive say how a text becomes words and how it is translated, as
--bpe sentencepiece --sentencepiece-model FILE, --tokenizer moses, --beam 4. An imported BERT needs
none. The folder receives attention-E.png, -A.png, -D.png, attention.csv and attention.json."""


def parser() -> Parser:
    p = Parser(NAME, description="What every head of a model looks at in a text.", epilog=EPILOG)
    add = p.add_argument
    add(
        "--path",
        nargs="+",
        required=True,
        metavar="CKPT",
        help="one checkpoint, or two to be shown side by side: of translation, of sentences and "
        "pairs (RoBERTa, BERT) or of a language",
    )
    add("--text", metavar="TEXT", help="a sentence; without it the first line of --input")
    add(
        "--target",
        "--second",
        dest="second",
        metavar="TEXT",
        help="its translation (default: the model's own), or the second sentence of a pair",
    )
    add("--results-dir", required=True, metavar="DIR", help="folder for pictures and figures")
    add(
        "--input",
        metavar="FILE",
        help="measure the figures on all its lines, a second sentence behind a tab, instead of "
        "the text",
    )
    add("--data", nargs="+", metavar="DIR", help="of the dictionaries; default: of the training")
    add("--heads", metavar="HEADS", help="draw these only, as 'E:1:3 D:2:1-4'")
    add("--parts", default="E,A,D", help="draw these only")
    add("--average", action="store_true", help="draw the mean over the heads of each layer")
    add("--format", default="png", choices=["png", "svg", "pdf"], help="of the pictures")
    add("--force", action="store_true", help="replace files that exist")
    return p


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, DictConfig]:
    """Our flags, checked, and fairseq's settings from the others.

    Raises:
        ValueError: for flags that are wrong, missing or contradict each other.
    """
    args, rest = parser().parse_known_args(argv)
    args.command = [NAME, *argv]
    if len(args.path) > 2:
        raise ValueError(f"--path: {len(args.path)} checkpoints, but two can stand side by side")
    if args.data and len(args.data) not in (1, len(args.path)):
        raise ValueError("--data: give one folder, or one for each checkpoint")
    if args.text is None and args.input is None:
        raise ValueError("give --text, or --input with a file of texts")
    args.heads = parse_heads(args.heads) if args.heads else None
    args.parts = check_parts(args.parts.split(","))
    fairseqs = options.get_interactive_generation_parser()
    fairseqs.error = _complain
    own = str(Path(lite_transformer_plugin.__file__).parent)
    words = ["data", "--path", args.path[0], "--user-dir", own, *rest]
    return args, convert_namespace_to_omegaconf(options.parse_args_and_arch(fairseqs, words))


def _complain(message: str) -> None:
    raise ValueError(f"{message} (see --help)")


def run(argv: Sequence[str]) -> None:
    """The whole command."""
    quiet_logs()
    warnings.simplefilter("ignore")
    args, cfg = parse(argv)
    utils.import_user_module(cfg.common)
    folder = Path(args.results_dir)
    files = [f"attention-{part}.{args.format}" for part in sorted(args.parts)]
    folder.mkdir(parents=True, exist_ok=True)
    report.check_outputs([folder / name for name in [*files, *TABLES]], args.force)
    report.new_figure(1, 1)  # pictures come last: say now if they cannot be drawn
    models = open_models(args, cfg)
    seen = {name: look(args, reader) for name, reader in models.items()}
    write_tables(args, folder, seen)
    for part in (part for part in PARTS if part in args.parts):
        draw(args, folder, part, seen)


TITLE = "{}: {}. Rows: queries, columns: keys; in % the weight on |i - j| <= 1"
TABLES = ("attention.csv", "attention.json")


class Looked(NamedTuple):
    """What a model has looked at."""

    reading: Reading
    maps: dict[Place, Tensor]  # (H, T, S)
    heads: dict[Place, tuple[int, ...]]
    figures: dict[Head, diagonal.Figures]


def open_models(args: argparse.Namespace, cfg: DictConfig) -> dict[str, Reader]:
    """By the names they have in pictures and tables."""
    folders = args.data or [None]
    found = {}
    for i, path in enumerate(args.path):
        reader = open_reader(path, copy.deepcopy(cfg), folders[min(i, len(folders) - 1)])
        if args.heads and len(args.path) == 1:
            check_heads(reader.model, args.heads)
        name = type_of(reader)
        found[f"{name} ({i + 1})" if name in found else name] = reader
    return found


def type_of(reader: Reader) -> str:
    cfg = reader.saved.model
    return getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or type(reader.model).__name__


def look(args: argparse.Namespace, reader: Reader) -> Looked:
    """Read the text for the pictures, and all texts for the figures."""
    lines = list(texts(args))
    first = lines[0] if args.text is None else (args.text, args.second)
    reading, maps = reader.read(*first), {}
    meter = diagonal.DiagonalMeter(reader.model)

    def keep(seen) -> None:
        maps[seen.attention.place] = seen.weights[0]

    watch(reader.model, reading.sample, keep, *([] if args.input else [meter]))
    for line in lines if args.input else ():
        watch(reader.model, reader.read(*line).sample, meter)
    heads = {a.place: a.heads for a in attentions(reader.model)}
    return Looked(reading, maps, heads, meter.result())


def texts(args: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Sentences with what belongs to them.

    Raises:
        ValueError: for a file without a line.
    """
    if not args.input:
        yield args.text, args.second
        return
    with open(args.input, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    if not lines:
        raise ValueError(f"--input {args.input}: there is no text in it")
    for line in lines:
        text, _, second = line.partition("\t")
        yield text, second or None


# --- tables ---------------------------------------------------------------------------------------


def write_tables(args: argparse.Namespace, folder: Path, seen: dict[str, Looked]) -> None:
    """All heads into files; means over the heads of each layer on the screen."""
    rows = [row for name, found in seen.items() for row in diagonal.rows(name, found.figures)]
    data = {
        "provenance": report.provenance(args.command),
        "figures": diagonal.FIGURES,
        "words": {name: found.reading._asdict() for name, found in seen.items()},
        "heads": rows,
    }
    for words in data["words"].values():
        del words["sample"]
    report.write_csv(folder / TABLES[0], rows, args.force)
    report.write_json(folder / TABLES[1], data, args.force)
    print(report.format_table(list(means(seen))))


def means(seen: dict[str, Looked]) -> Iterator[list[str]]:
    """Rows of the table of layers."""
    yield ["", "heads", "diagonal", "evenly", "entropy", "sparsity"]
    for name, found in seen.items():
        for part in PARTS:
            heads = [head for head in found.figures if head.part == part]
            for layer in sorted({head.layer for head in heads}):
                yield _row(f"{name} {part}:{layer}", found, [h for h in heads if h.layer == layer])
            if heads:
                yield _row(f"{name} {part}", found, heads)


def _row(label: str, found: Looked, heads: list[Head]) -> list[str]:
    figures = diagonal.mean(found.figures[head] for head in heads)
    shares = [f"{100 * figures[name]:.1f} %" for name in ("diagonal", "diagonal_evenly")]
    rest = [f"{figures['entropy']:.2f}", f"{100 * figures['sparsity']:.1f} %"]
    return [label, str(len(heads)), *shares, *rest]


# --- pictures -------------------------------------------------------------------------------------


def draw(args: argparse.Namespace, folder: Path, part: str, seen: dict[str, Looked]) -> None:
    """The sheet of one part, if a model has it."""
    blocks = {name: block(args, part, found) for name, found in seen.items()}
    blocks = {name: rows for name, rows in blocks.items() if rows}
    if not blocks:
        return
    figure = map_sheet(blocks, TITLE.format(part, PARTS[part]))
    path = folder / f"attention-{part}.{args.format}"
    report.save_figure(figure, path, args.force)
    print(f"wrote {path}", file=sys.stderr)


def block(args: argparse.Namespace, part: str, found: Looked) -> Block:
    """A row of panels for each layer."""
    rows = []
    keys = found.reading.source if part in "EA" or not found.reading.target else None
    keys = keys if keys is not None else found.reading.target
    queries = found.reading.source if part == "E" else found.reading.target
    for (of, layer), weights in found.maps.items():
        chosen = [
            (i, Head(of, layer, number))
            for i, number in enumerate(found.heads[of, layer])
            if of == part and (not args.heads or Head(of, layer, number) in args.heads)
        ]
        if chosen and args.average:
            share = diagonal.mean(found.figures[head] for _, head in chosen)["diagonal"]
            mean = weights[[i for i, _ in chosen]].mean(0)
            rows.append([Panel(f"{of}:{layer} mean, {100 * share:.0f} %", mean, queries, keys)])
        elif chosen:
            rows.append([_panel(found, head, weights[i], queries, keys) for i, head in chosen])
    return rows


def _panel(found: Looked, head: Head, weights: Tensor, queries: list, keys: list) -> Panel:
    share = found.figures[head]["diagonal"]
    return Panel(f"{head} {100 * share:.0f} %", weights, queries, keys)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after one line about what the user can mend."""
    return guarded(NAME, run, argv)


def cli_main() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    cli_main()
