#!/usr/bin/env python3
"""The sentences of a task, and their labels, as lines of words of the imported model's dictionary.

    python3 sentences.py TASK FOLDER TOKENIZER OUTPUT [--longest N]

FOLDER has the task's files as GLUE gives them. OUTPUT receives {train,valid,test}.input0, .input1
(for pairs) and .label. GLUE keeps the labels of its test sets, so its development set is `test`
here, and `valid` is every 20th line of the training set; MNLI has two development sets, and `pairs`
has its own three.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EVERY = 20  # this share of a training set is for validation


class Task(NamedTuple):
    files: dict[str, str]  # by split; without "valid", lines of "train" are held out
    sentences: tuple[int | str, ...]  # columns: names in the first line, or numbers without one
    label: int | str


TASKS = {
    "mnli": Task(
        {"train": "train.tsv", "valid": "dev_matched.tsv", "test": "dev_mismatched.tsv"},
        ("sentence1", "sentence2"),
        "gold_label",
    ),
    "sst-2": Task({"train": "train.tsv", "test": "dev.tsv"}, ("sentence",), "label"),
    "cola": Task({"train": "train.tsv", "test": "dev.tsv"}, (3,), 1),
    "mrpc": Task({"train": "train.tsv", "test": "dev.tsv"}, ("#1 String", "#2 String"), "Quality"),
    "pairs": Task({"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}, (0, 1), 2),
}
Example = tuple[list[str], str]  # sentences and label


def read(path: Path, task: Task) -> Iterator[Example]:
    """The examples of one file.

    Raises:
        ValueError: for a line without one of the columns.
    """
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    columns = [*task.sentences, task.label]
    first = 0
    if isinstance(task.label, str):
        names = lines[0].rstrip("\r").split("\t")
        missing = [name for name in columns if name not in names]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]!r} in its first line")
        columns, first = [names.index(name) for name in columns], 1
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip():
            continue
        cells = line.rstrip("\r").split("\t")
        if len(cells) <= max(columns):
            raise ValueError(f"{path}, line {number}: {len(cells)} columns are too few")
        *sentences, label = (cells[column].strip() for column in columns)
        if label != "-":  # MNLI's annotators did not agree
            yield sentences, label


def split(task: Task, folder: Path) -> dict[str, list[Example]]:
    """Training, validation and test set.

    Raises:
        FileNotFoundError: naming the first file that is missing.
        ValueError: for a file that is not as it should be, or a label that training has not.
    """
    for name in task.files.values():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}: give the folder of the task's files")
    found = {name: list(read(folder / file, task)) for name, file in task.files.items()}
    if "valid" not in found:
        found["valid"] = found["train"][::EVERY]
        found["train"] = [x for i, x in enumerate(found["train"]) if i % EVERY]
    known = {label for _, label in found["train"]}
    for name, examples in found.items():
        unseen = sorted({label for _, label in examples} - known)
        if unseen:
            raise ValueError(f"the label {unseen[0]!r} of {name} is in no training example")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--longest", type=int, help="leave longer training examples out (tokens)")
    args = parser.parse_args()
    from lite_transformer_plugin.huggingface.tokenizer import HuggingFaceTokenizer, TokenizerConfig

    encode = HuggingFaceTokenizer(TokenizerConfig(hf_tokenizer=str(args.tokenizer))).encode
    args.output.mkdir(parents=True, exist_ok=True)
    for name, examples in split(TASKS[args.task], args.folder).items():
        encoded = [([encode(text) for text in texts], label) for texts, label in examples]
        if name == "train" and args.longest:
            encoded = [x for x in encoded if length(x) <= args.longest]
        write(args.output, name, encoded)
        left = len(examples) - len(encoded)
        print(f"{name}: {len(encoded)} examples" + f", {left} longer ones left out" * bool(left))


def length(example: Example) -> int:
    """Tokens of the model's input, separators included."""
    return 1 + sum(len(text.split()) + 1 for text in example[0])


def write(folder: Path, name: str, examples: list[Example]) -> None:
    columns = [[texts[i] for texts, _ in examples] for i in range(len(examples[0][0]))]
    columns.append([label for _, label in examples])
    kinds = [*(f"input{i}" for i in range(len(columns) - 1)), "label"]
    for kind, lines in zip(kinds, columns, strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.{kind}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"sentences.py: {error}")
