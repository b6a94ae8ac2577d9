"""Score what fairseq-generate wrote, show five translations beside their references, keep both.

With --table: print the results of several runs side by side instead.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
from pathlib import Path

import sacrebleu

# By its path: to import the package is to import fairseq, which takes seconds.
READER = Path(__file__).parents[2] / "lite_transformer_plugin/generation_output.py"
spec = importlib.util.spec_from_file_location("generation_output", READER)
generation_output = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generation_output)

SHOWN = 5
SHOWN_WORDS = range(8, 19)  # long enough to say something, short enough for a line
PACKAGES = ("torch", "ve-fairseq", "fairseq-fixed", "fairseq", "sacrebleu", "sentencepiece")


def spread(references: list[str]) -> list[int]:
    """Numbers of SHOWN sentences of middling length, evenly spread over the test set."""
    middling = [n for n, text in enumerate(references) if len(text.split()) in SHOWN_WORDS]
    return [middling[i * len(middling) // SHOWN] for i in range(SHOWN)]


def versions() -> dict[str, str]:
    """What was installed; fairseq goes by the name of its distribution."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_result(path: Path, result: dict) -> None:
    """Write under a temporary name, then rename: an interrupted run leaves no half file."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    unfinished.replace(path)


def score(model: Path, text: Path, command: str | None) -> None:
    """Print translations and BLEU of the model folder, and write its result.json."""
    sources, references = (
        list(generation_output.read_lines(text / f"test.{side}")) for side in ("de", "en")
    )
    try:
        hypotheses = generation_output.read_sentences(model / "generate.txt", "D", len(references))
    except ValueError as error:
        raise SystemExit(f"score.py: {error}") from error
    schedule = json.loads((model / "schedule.json").read_text())
    metric = sacrebleu.metrics.BLEU()
    bleu = metric.corpus_score(hypotheses, [references])
    shown = spread(references)
    for number in shown:
        print(f"\n  German     {sources[number]}")
        print(f"  translated {hypotheses[number]}")
        print(f"  reference  {references[number]}")
    print(f"\n{model.name}: BLEU {bleu.score:.1f} on {len(references)} sentences", end=" ")
    print(f"after {schedule['done']} updates, {schedule['used_seconds'] / 60:.1f} min of training")
    print(f"{bleu.format(signature=str(metric.get_signature()))}", flush=True)
    result = {
        "arch": model.name,
        "bleu": round(bleu.score, 2),
        "signature": str(metric.get_signature()),
        "sentences": len(references),
        "updates": schedule["done"],
        "training_minutes": round(schedule["used_seconds"] / 60, 2),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "versions": versions(),
        "training_command": command,
    }
    write_result(model / "result.json", result)


def print_table(models: list[Path]) -> None:
    """One line a model: what it reached, and with how much training."""
    results = [json.loads((model / "result.json").read_text("utf-8")) for model in models]
    print(f"\n{'architecture':32}{'BLEU':>6}{'updates':>9}{'minutes':>9}")
    for r in results:
        print(f"{r['arch']:32}{r['bleu']:6.1f}{r['updates']:9d}{r['training_minutes']:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", help="folders that run.sh trained in")
    parser.add_argument("--text", type=Path, help="folder of test.de and test.en")
    parser.add_argument("--command", help="what trained the model, for result.json")
    parser.add_argument("--table", action="store_true", help="compare results already written")
    args = parser.parse_args()
    if args.table:
        print_table(args.models)
    elif args.text is None or len(args.models) != 1:
        parser.error("one model folder and --text are needed unless --table is given")
    else:
        score(args.models[0], args.text, args.command)


if __name__ == "__main__":
    main()
