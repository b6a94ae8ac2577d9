"""Ablation of every head: fairseq-prune-heads against one fairseq-generate per head.

    python ablation.py DATA --path CKPT [flags of fairseq-generate] [--sample N] [--json FILE]

Wall time. One fairseq-generate is run for N heads only, in between, and its median is taken for all
heads; their BLEU must be what fairseq-prune-heads finds. Leave the machine alone meanwhile.
"""

import argparse
import csv
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import lite_transformer_plugin
from lite_transformer_plugin import report

PLUGIN = str(Path(lite_transformer_plugin.__file__).parent)


def timed(command: Sequence[str]) -> tuple[float, str]:
    """Seconds, and what it wrote."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - start, done.stdout + done.stderr


def all_heads(flags: Sequence[str], processes: int) -> tuple[float, dict[str, float]]:
    """Seconds of one command for all heads, and BLEU without each."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["fairseq-prune-heads", *flags, "--results-dir", folder, "--ablate", "one"]
        command += ["--processes", str(processes), "--importance-steps", "1", "--ratios", "0"]
        seconds, _ = timed(command)
        text = (Path(folder) / "ablation.csv").read_text(encoding="utf-8")
    return seconds, {row["head"]: float(row["bleu"]) for row in csv.DictReader(text.splitlines())}


def one_head(flags: Sequence[str], head: str) -> tuple[float, float]:
    """Seconds of fairseq-generate without a head, and its BLEU."""
    command = ["fairseq-generate", *flags, "--user-dir", PLUGIN, "--task", "prune_heads"]
    command += ["--mask-heads", head, "--scoring", "sacrebleu"]
    seconds, output = timed(command)
    return seconds, float(re.findall(r"BLEU4?[^=]*= *([\d.]+)", output)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=4, metavar="N", help="heads (default: 4)")
    parser.add_argument("--json", help="also write the rows here, with how they were made")
    args, flags = parser.parse_known_args()
    report.check_outputs([args.json], force=False)
    rows, stock = [], []
    for processes in (1, 2):
        seconds, bleu = all_heads(flags, processes)
        heads = list(bleu)[processes - 1 :: max(1, 2 * len(bleu) // args.sample)]
        for head in heads:
            spent, score = one_head(flags, head)
            assert abs(score - bleu[head]) < 0.01, f"{head}: BLEU {score}, not {bleu[head]}"
            stock.append(spent)
        rows.append({"processes": processes, "heads": len(bleu), "ours": seconds})
    for row in rows:
        row["stock"] = statistics.median(stock) * row["heads"]
        row["ratio"] = row["stock"] / row["ours"]
        print(*(f"{key} {round(value, 2)}" for key, value in row.items()), sep="  ")
    if args.json:
        made = report.provenance(["ablation.py", *sys.argv[1:]], seed=1)
        report.write_json(args.json, {"provenance": made, "rows": rows, "one": stock})


if __name__ == "__main__":
    main()
