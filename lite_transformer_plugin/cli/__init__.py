"""Commands: arguments in, files and tables out; no mathematics. Here: what all of them share."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default == []
        return action.help if nothing else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, and flags are spelt in full."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("formatter_class", Defaults)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str):
        raise ValueError(f"{message} (see --help)")


def guarded(name: str, run: Callable[[Sequence[str]], None], argv: Sequence[str] | None) -> int:
    """Run a command; its exit status is 2, after one line, for what the user can mend."""
    try:
        run(sys.argv[1:] if argv is None else list(argv))
    except BrokenPipeError:  # the reader of the table, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def quiet_logs() -> None:
    """Warnings only, on stderr; fairseq's imports leave the root logger at its most talkative."""
    level = os.environ.get("LOGLEVEL", "WARNING").upper()
    logging.basicConfig(level=level, stream=sys.stderr, force=True)
