"""Take perplexity and speed out of what fairseq-eval-lm wrote: a line, and result.json.

Usage: perplexity.py FOLDER, which holds eval-lm.txt and eval-lm.command.
"""

import re
import shlex
import sys
from pathlib import Path

from lite_transformer_plugin import report

LINES = {
    "tokens": r"Evaluated ([\d,]+) tokens",
    "tokens_per_second": r"\(([\d.]+) tokens/s\)",
    "loss": r"Loss \(base 2\): ([\d.]+)",  # bits a word
    "perplexity": r"Perplexity: ([\d.]+|inf)",
}


def figures(log: str) -> dict[str, float]:
    """What the log says, by the names in `LINES`.

    Raises:
        ValueError: if one is missing.
    """
    found = {name: re.findall(pattern, log) for name, pattern in LINES.items()}
    missing = [name for name, values in found.items() if not values]
    if missing:
        raise ValueError(f"no {', '.join(missing)} in it: evaluate again with FORCE=1")
    return {name: float(values[-1].replace(",", "")) for name, values in found.items()}


def main(folder: Path) -> None:
    try:
        result = figures((folder / "eval-lm.txt").read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"evaluate.sh: {folder / 'eval-lm.txt'}: {error}")
    command = shlex.split((folder / "eval-lm.command").read_text())
    data = {"provenance": report.provenance(command), **result}
    report.write_json(folder / "result.json", data, force=True)
    print(
        f"perplexity {result['perplexity']:.2f} ({result['loss']:.4f} bits), "
        f"{result['tokens_per_second']:.0f} tokens/s: {folder / 'result.json'}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
