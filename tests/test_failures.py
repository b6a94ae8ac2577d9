"""Bad input to stock commands: an error, whole checkpoints, and no sentence left out unsaid."""

import io
import logging
import shutil
import sys
from pathlib import Path

import pytest
from fairseq.tasks import FairseqTask
from stock import LAST, NO_VALIDATION, contents, generate, interactive, make_run, preprocess, train

LONG = "a " * 1100


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Text, binarised data and a checkpoint after three updates."""
    folder = tmp_path_factory.mktemp("failures")
    make_run(folder)
    return folder


@pytest.fixture(autouse=True)
def the_checkpoint_is_intact(work):
    before = contents(work / "saved")
    yield
    (work / "saved/crash.pt").unlink(missing_ok=True)  # what fairseq had when an update failed
    assert contents(work / "saved") == before


@pytest.fixture
def data(work, tmp_path) -> Path:
    """Binarised data to spoil."""
    return shutil.copytree(work / "data", tmp_path / "data")


def go_on(work: Path, data: Path, *words) -> None:
    """Continue the training run, validation included."""
    train(data, work / "saved", "--max-update", 6, *words)


def translate_input(work: Path, data: Path, content: bytes, *words) -> None:
    """fairseq-interactive with a file."""
    (data / "input").write_bytes(content)
    interactive(data, work / "saved" / LAST, "--input", data / "input", *words)


def hypotheses(output: str) -> list[str]:
    """The numbers of the sentences that were translated."""
    return [line.split("\t")[0] for line in output.splitlines() if line.startswith("H-")]


COMMANDS = {
    "train": go_on,
    "generate": lambda work, data: generate(data, work / "saved" / LAST),
    "interactive": lambda work, data: translate_input(work, data, b"a b\n", "-s", "de", "-t", "en"),
}
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)

# --- dictionaries, empty files, splits ------------------------------------------------------------


@commands
def test_a_missing_dictionary(command, work, data):
    (data / "dict.en.txt").unlink()
    with pytest.raises(FileNotFoundError, match="dict.en.txt"):
        command(work, data)


@commands
def test_an_empty_dictionary(command, work, data):
    for name in ("dict.de.txt", "dict.en.txt"):
        (data / name).write_bytes(b"")
    with pytest.raises(Exception, match="architectures match|size mismatch"):
        command(work, data)


@commands
def test_bytes_in_a_dictionary_that_are_no_text(command, work, data):
    (data / "dict.en.txt").write_bytes(b"\xff 1\n")
    with pytest.raises(Exception, match="Incorrect encoding detected in .*dict.en.txt"):
        command(work, data)


@pytest.mark.parametrize("split", ["train", "test"])
def test_empty_text_is_refused_where_it_is_used(split, work, tmp_path, caplog):
    """Preprocessing only tells how many sentences it has seen."""
    caplog.set_level(logging.INFO)
    for language in ("de", "en"):
        (tmp_path / f"empty.{language}").write_bytes(b"")
    prefix, dictionary = tmp_path / "empty", work / "data/dict.de.txt"
    preprocess(tmp_path / "data", f"--{split}pref", prefix, "--srcdict", dictionary)
    assert "empty.de: 0 sents" in caplog.text
    with pytest.raises(ValueError, match="cannot mmap an empty file"):
        if split == "train":
            go_on(work, tmp_path / "data", NO_VALIDATION)
        else:
            generate(tmp_path / "data", work / "saved" / LAST)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_missing_split(split, work, data):
    for path in data.glob(f"{split}.*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=f"Dataset not found: {split}"):
        go_on(work, data)


def test_an_unknown_split(work, data):
    with pytest.raises(FileNotFoundError, match="Dataset not found: nosuch"):
        generate(data, work / "saved" / LAST, "--gen-subset", "nosuch")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_missing_side_of_a_split(split, work, data):
    (data / f"{split}.de-en.en.bin").unlink()
    with pytest.raises(TypeError, match="prev_output_tokens"):
        go_on(work, data)


# --- checkpoints ----------------------------------------------------------------------------------


CUT_SHORT = "^$|is cut short, or its header is damaged"


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("command", ["train", "generate"])
def test_a_truncated_checkpoint(command, share, work, tmp_path):
    whole = (work / "saved" / LAST).read_bytes()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / LAST).write_bytes(whole[: int(share * len(whole))])
    before = contents(tmp_path / "saved")
    with pytest.raises((EOFError, ValueError), match=CUT_SHORT):
        COMMANDS[command](tmp_path, work / "data")
    assert contents(tmp_path / "saved") == before


def test_a_checkpoint_of_another_architecture(work):
    """The cause is the first of the two errors that are printed."""
    with pytest.raises(Exception, match="please ensure that the architectures match") as caught:
        go_on(work, work / "data", "--encoder-embed-dim", 8)
    assert "size mismatch for encoder.embed_tokens.weight" in str(caught.value.__context__)


def test_a_checkpoint_of_another_dictionary(work, data):
    for path in data.glob("dict.*.txt"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    with pytest.raises(RuntimeError, match="size mismatch for encoder.embed_tokens.weight"):
        generate(data, work / "saved" / LAST)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("lines", [40, 4000])
def test_bytes_that_are_no_text(lines, workers, work, tmp_path):
    """Preprocessing does not tell which file it was, but stops."""
    text = [b"a b c d e f g h\n"] * lines
    text[lines // 2 + 3] = b"a \xff b\n"
    for language in ("de", "en"):
        (tmp_path / f"bad.{language}").write_bytes(b"".join(text))
    dictionary = ["--srcdict", work / "data/dict.de.txt"]
    with pytest.raises(ValueError, match="negative seek position|can't decode byte 0xff"):
        preprocess(tmp_path / "bin", "--trainpref", tmp_path / "bad", *dictionary, workers=workers)


def test_bytes_that_are_no_text_in_a_file_to_translate(work, data):
    with pytest.raises(UnicodeDecodeError, match="byte 0xff"):
        translate_input(work, data, b"a b\nc \xff d\n")


def stdin(content: bytes) -> io.TextIOWrapper:
    """Standard input as Python opens it in the locales C, POSIX and C.UTF-8."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="surrogateescape")


def test_bytes_that_are_no_text_on_standard_input(work, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", stdin(b"a b\nc \xff d\n"))
    with pytest.raises(UnicodeDecodeError, match="byte 0xff"):
        interactive(work / "data", work / "saved" / LAST)
    assert hypotheses(capsys.readouterr().out) == ["H-0"]


def test_fairseq_still_translates_bytes_that_are_no_text(work, monkeypatch, capsys):
    """When this fails, fairseq is mended and the mend can go."""
    mended = FairseqTask.get_interactive_tokens_and_lengths
    monkeypatch.setattr(FairseqTask, mended.__name__, mended.__wrapped__)
    monkeypatch.setattr(sys, "stdin", stdin(b"c \xff d\n"))
    interactive(work / "data", work / "saved" / LAST)
    assert "S-0\tc <unk> d" in capsys.readouterr().out


# --- long lines -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(work) -> Path:
    """Data whose second of three sentences is longer than 1024 tokens, in every split."""
    for language in ("de", "en"):
        (work / f"long.{language}").write_text(f"a b\n{LONG}\nc\n")
    prefixes = [f"--{name}pref={work / 'long'}" for name in ("train", "valid", "test")]
    preprocess(work / "long", *prefixes, "--srcdict", work / "data/dict.de.txt")
    return work / "long"


SKIPPED = "1 samples have invalid sizes and will be skipped"
TOO_LONG = r"Size of sample #1 is invalid \(=\(1101, "


def test_training_warns_of_a_long_line(work, long, tmp_path, caplog):
    train(long, tmp_path, "--max-update", 1, NO_VALIDATION)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(text.startswith(SKIPPED) for text in warnings)
    assert (tmp_path / LAST).exists()


def test_validation_and_generation_refuse_a_long_line(work, long, capsys):
    for command in (go_on, COMMANDS["generate"]):
        with pytest.raises(Exception, match=TOO_LONG):
            command(work, long)
    assert hypotheses(capsys.readouterr().out) == []


def test_interactive_refuses_a_long_line(work, data, capsys):
    """What came before it has been translated."""
    with pytest.raises(Exception, match=r"Size of sample #0 is invalid \(=\(1101, "):
        translate_input(work, data, f"a b\n{LONG}\nc\n".encode())
    assert hypotheses(capsys.readouterr().out) == ["H-0"]


def test_lines_keep_their_numbers_where_skipping_was_asked_for(work, data, long, capsys, caplog):
    skip = "--skip-invalid-size-inputs-valid-test"
    generate(long, work / "saved" / LAST, skip)
    assert sorted(hypotheses(capsys.readouterr().out)) == ["H-0", "H-2"]
    translate_input(work, data, f"a b\n{LONG}\nc\n".encode(), skip, "--buffer-size", 8)
    assert hypotheses(capsys.readouterr().out) == ["H-0", "H-2"]
    assert caplog.text.count(SKIPPED) == 2
