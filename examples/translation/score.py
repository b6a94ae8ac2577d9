"""Score what fairseq-generate wrote: tokenised BLEU by fairseq-score, sacreBLEU of plain text; or
ROUGE of plain text.

Leaves beside generate.txt, sorted by sentence number:
    hypotheses.tokens, references.tokens     what fairseq-score compares
    hypotheses.txt                           detokenised, what sacreBLEU compares with the original
    result.json                              both scores, and how they were made
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import sacrebleu
from corpus_files import Failure, read_lines, say, whole
from text_steps import detokenise, split_compounds

# By its path: to import the package is to import fairseq, which takes seconds.
READER = Path(__file__).parents[2] / "lite_transformer_plugin/generation_output.py"
spec = importlib.util.spec_from_file_location("generation_output", READER)
generation_output = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generation_output)

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
PACKAGES = (
    "torch",
    "ve-fairseq",
    "fairseq-fixed",
    "fairseq",
    "sacrebleu",
    "sacremoses",
    "rouge-score",
)


def write(path: Path, lines: list[str]) -> Path:
    with whole([path]) as (file,):
        file.writelines(line + "\n" for line in lines)
    return path


def tokenised_bleu(hypotheses: Path, references: Path) -> str:
    """The line that fairseq-score prints."""
    command = ["fairseq-score", "--sys", hypotheses, "--ref", references]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    found = re.search(r"^BLEU4 = .*", result.stdout, re.MULTILINE)
    if found is None:
        raise Failure(f"fairseq-score failed: {result.stderr.strip().splitlines()[-1:]}")
    return found[0]


def original_lines(path: Path, expected: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != expected:
        raise Failure(f"{path} has {len(lines)} lines, not {expected}")
    return lines


def plain_bleu(hypotheses: list[str], original: Path, lowercase: bool) -> tuple[float, str, str]:
    """Score, line and signature of sacreBLEU, against the references as they were published."""
    references = original_lines(original, len(hypotheses))
    metric = sacrebleu.metrics.BLEU(lowercase=lowercase)
    score = metric.corpus_score(hypotheses, [references])
    signature = str(metric.get_signature())
    return score.score, score.format(signature=signature), signature


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def score(args: argparse.Namespace) -> None:
    generated = args.result / "generate.txt"
    try:
        references = generation_output.read_sentences(generated, "T")
        hypotheses = generation_output.read_sentences(generated, "H", expected=len(references))
    except ValueError as error:
        raise Failure(str(error)) from error
    plain = [detokenise(line, args.target) for line in hypotheses]
    write(args.result / "hypotheses.txt", plain)
    scores = summary_scores if args.rouge else translation_scores
    result = {
        "sentences": len(hypotheses),
        **scores(args, hypotheses, references, plain),
        "command": (args.result / "generate.command").read_text().strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "versions": versions(),
    }
    write(args.result / "result.json", [json.dumps(result, indent=1, ensure_ascii=False)])


def translation_scores(
    args: argparse.Namespace, hypotheses: list[str], references: list[str], plain: list[str]
) -> dict:
    """BLEU of tokens, and of plain text where the original references are at hand."""
    compared = split_compounds if args.split_compounds else str
    files = [
        write(args.result / f"{name}.tokens", [compared(line) for line in lines])
        for name, lines in (("hypotheses", hypotheses), ("references", references))
    ]
    tokenised = tokenised_bleu(*files)
    how = ", compounds split" if args.split_compounds else ""
    print(f"tokenised BLEU by fairseq-score{how}, {len(hypotheses)} sentences:\n  {tokenised}")
    result = {
        "tokenised_bleu": float(re.search(r"= ([\d.]+)", tokenised)[1]),
        "compounds_split": args.split_compounds,
    }
    if not args.original.exists():
        print(f"no sacreBLEU: the original references ({args.original}) are not there")
        return result
    bleu, line, signature = plain_bleu(plain, args.original, args.lowercase)
    case = ", lower-cased" if args.lowercase else ""
    print(f"sacreBLEU of plain text against the original references{case}:\n  {line}")
    return result | {"sacrebleu": round(bleu, 2), "signature": signature}


def summary_scores(
    args: argparse.Namespace, hypotheses: list[str], references: list[str], plain: list[str]
) -> dict:
    """ROUGE of plain text, and of the first sentence of every source, the lead baseline."""
    from lite_transformer_plugin.rouge import rouge  # slow: imports fairseq

    originals = original_lines(args.original, len(plain))
    sources = original_lines(args.original.with_suffix(".source"), len(plain))
    result = {}
    for name, texts in (("rouge", plain), ("lead", lead(sources, args.lead))):
        result[name] = {kind: round(f1, 2) for kind, f1 in rouge(texts, originals).items()}
        shown = ", ".join(f"{kind} {f1}" for kind, f1 in result[name].items())
        what = "summaries" if name == "rouge" else f"the first {args.lead} sentence(s) instead"
        print(f"{shown}: {what}")
    return result


def lead(sources: list[str], sentences: int) -> list[str]:
    """The first sentences of every source."""
    return [" ".join(SENTENCE_END.split(source)[:sentences]) for source in sources]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, help="folder of generate.txt")
    parser.add_argument("--target", required=True, help="language of the translations")
    parser.add_argument("--original", type=Path, required=True, help="references, never tokenised")
    parser.add_argument("--lowercase", action="store_true", help="compare without case")
    parser.add_argument("--rouge", action="store_true", help="they are summaries")
    parser.add_argument("--lead", type=int, default=1, help="sentences of the lead baseline")
    parser.add_argument("--split-compounds", action="store_true", help="a-b as three tokens")
    try:
        score(parser.parse_args())
    except Failure as error:
        say(f"evaluate.sh: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
