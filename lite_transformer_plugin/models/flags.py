"""A model's flags on the command line of fairseq-train, made from its dataclass."""

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from dataclasses import fields

from fairseq.dataclass.utils import gen_parser_from_dataclass


def add_flags(parser: ArgumentParser, config: type) -> None:
    """Add every flag; defaults are left out so that architectures can set them.

    Switches can be given either way (``--encoder-glu``, ``--no-encoder-glu``), so that an
    architecture's choice can be undone; fairseq's own parser knows one direction only.
    """
    for f in fields(config):
        elsewhere = isinstance(f.default, str)  # "${...}": a flag of another part of fairseq
        if f.type is bool and not elsewhere and not f.name.startswith("no_"):
            parser.add_argument(
                "--" + f.name.replace("_", "-"),
                action=BooleanOptionalAction,
                default=SUPPRESS,
                help=f.metadata.get("help"),
            )
    gen_parser_from_dataclass(parser, config(), delete_default=True)
