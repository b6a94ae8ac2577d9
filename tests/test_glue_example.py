"""examples/glue: the files of every task are read as GLUE gives them, and held out as it says."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hf_folders import make, write_tokenizer

GLUE = Path(__file__).parents[1] / "examples/glue"
spec = importlib.util.spec_from_file_location("glue_sentences", GLUE / "sentences.py")
sentences = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sentences)

MNLI = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
FILES = {
    "mnli": {
        "train.tsv": MNLI + "0\ta \tb\tneutral\tneutral\n1\tc\td\tx\tentailment\n",
        "dev_matched.tsv": MNLI + "0\te\tf\tneutral\tneutral\n1\tg\th\tx\t-\n",
        "dev_mismatched.tsv": MNLI + '0\t"i\tj\tx\tentailment\n',
    },
    "sst-2": {
        "train.tsv": "sentence\tlabel\n" + "".join(f"s{i}\t{i % 2}\n" for i in range(40)),
        "dev.tsv": "sentence\tlabel\ngood\t1\r\n",
    },
    "cola": {
        "train.tsv": "".join(f"src\t{i % 2}\t*\tt{i}\n" for i in range(40)),
        "dev.tsv": "src\t0\t*\tno\n",
    },
    "mrpc": {
        "train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        + "".join(f"{i % 2}\t1\t2\ta{i}\tb{i}\n" for i in range(40)),
        "dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t3\t4\tx\ty\n",
    },
    "pairs": {
        "train.tsv": "the cat\ta dog\tsame\na\tthe mat sat on the mat\tother\n",
        "dev.tsv": "a\tb\tother\n",
        "test.tsv": "c\td\tsame\n",
    },
}
FIRST = {  # of training and test set
    "mnli": ((["a", "b"], "neutral"), (['"i', "j"], "entailment")),
    "sst-2": ((["s1"], "1"), (["good"], "1")),
    "cola": ((["t1"], "1"), (["no"], "0")),
    "mrpc": ((["a1", "b1"], "1"), (["x", "y"], "1")),
    "pairs": ((["the cat", "a dog"], "same"), (["c", "d"], "same")),
}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize("task", FILES)
def test_files_as_glue_gives_them(task, tmp_path):
    found = sentences.split(sentences.TASKS[task], write(tmp_path, FILES[task]))
    assert (found["train"][0], found["test"][0]) == FIRST[task]
    if len(sentences.TASKS[task].files) == 2:
        assert (len(found["train"]), len(found["valid"])) == (38, 2)
    if task == "mnli":
        assert [label for _, label in found["valid"]] == ["neutral"]  # not where annotators differ


@pytest.mark.parametrize(
    "task, spoilt, expected",
    [
        ("pairs", {"test.tsv": "a\tb\tnever\n"}, "the label 'never' of test is in no training"),
        ("pairs", {"dev.tsv": "a\tsame\n"}, "dev.tsv, line 1: 2 columns are too few"),
        ("sst-2", {"dev.tsv": "text\tlabel\na\t1\n"}, "dev.tsv has no column 'sentence'"),
    ],
)
def test_files_that_are_not_as_they_should_be(task, spoilt, expected, tmp_path):
    with pytest.raises(ValueError, match=expected):
        sentences.split(sentences.TASKS[task], write(tmp_path, FILES[task] | spoilt))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no dev.tsv"):
        sentences.split(
            sentences.TASKS["cola"], write(tmp_path, {"train.tsv": FILES["cola"]["train.tsv"]})
        )


def test_words_are_those_of_the_tokeniser(tmp_path):
    data = write(tmp_path / "data", FILES["pairs"])
    make(tmp_path / "hf", "bert")
    write_tokenizer(tmp_path / "hf", "bert").save(str(tmp_path / "tokenizer.json"))
    words = ["pairs", data, tmp_path / "tokenizer.json", tmp_path / "text", "--longest", 8]
    command = [sys.executable, str(GLUE / "sentences.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "train: 1 examples, 1 longer ones left out" in done.stdout
    text = {path.name: path.read_text() for path in (tmp_path / "text").iterdir()}
    assert text["train.input0"] == "the cat\n" and text["train.label"] == "same\n"
    assert text["test.input1"] == "<unk>\n"  # d is not among the pieces
