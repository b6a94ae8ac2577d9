"""prepare.sh of the translation examples: the steps in their order, stopped, repeated, refused."""

import fcntl
import io
from pathlib import Path

import pytest
from translation_examples import (
    IWSLT,
    corpus_files,
    corpus_steps,
    lines,
    prepared,
    read,
    text_steps,
    write_iwslt,
)


@pytest.fixture(scope="module")
def iwslt_data(tmp_path_factory) -> Path:
    return write_iwslt(tmp_path_factory.mktemp("iwslt") / "data")


def test_iwslt_text(iwslt_data, tmp_path):
    """Every 23rd clean pair is for validation, all others for training, in their order."""
    work = prepared(IWSLT, tmp_path / "work", iwslt_data)
    talk = zip(lines("train", "de", 0, 240), lines("train", "en", 0, 240), strict=True)
    pairs = [tuple(map(text_steps.tokenise, pair, ("de", "en"))) for pair in talk]
    clean = [p for p in pairs if text_steps.is_clean(*p, shortest=1, longest=175, ratio=1.5)]
    assert 200 < len(clean) < 240
    valid = [source.lower() for source, _ in clean[22::23]]
    train = [target.lower() for n, (_, target) in enumerate(clean, 1) if n % 23]
    assert read(work / "words/valid.de") == valid
    assert read(work / "words/train.en") == train
    assert read(work / "raw/test.en") == lines("test", "en", 0, 10)
    restored = [line.replace("@@ ", "") for line in read(work / "pieces/train.en")]
    assert restored == train


def test_the_merges_are_those_of_subword_nmt(iwslt_data, tmp_path):
    work = prepared(IWSLT, tmp_path / "work", iwslt_data)
    both = (work / "words/train.de").read_text() + (work / "words/train.en").read_text()
    expected = io.StringIO()
    corpus_steps.learn_bpe(io.StringIO(both), expected, 100)
    assert (work / "bpe.codes").read_text() == expected.getvalue()


def test_force_prepares_anew(iwslt_data, tmp_path):
    work = prepared(IWSLT, tmp_path / "work", iwslt_data)
    before = read(work / "bpe.codes")
    with pytest.raises(corpus_files.WrongUse, match="other settings"):
        prepared(IWSLT, work, iwslt_data, "--bpe-merges", 50)
    assert read(work / "bpe.codes") == before
    prepared(IWSLT, work, iwslt_data, "--bpe-merges", 50, "--force")
    assert read(work / "bpe.codes") == before[:51]


def test_an_interrupted_preparation_goes_on(iwslt_data, tmp_path, monkeypatch):
    """Stopped while the pieces are written: no half file, and the words are not made again."""
    with monkeypatch.context() as patch:
        patch.setattr(corpus_steps, "to_pieces", lambda pair, path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepared(IWSLT, tmp_path / "work", iwslt_data)
    work = tmp_path / "work"
    made = (work / "words/train.de").stat().st_mtime_ns
    assert not (work / "pieces/train.de").exists()
    prepared(IWSLT, work, iwslt_data)
    assert (work / "words/train.de").stat().st_mtime_ns == made
    assert len(read(work / "pieces/train.de")) == len(read(work / "words/train.de"))


def test_two_preparations_at_once_are_refused(iwslt_data, tmp_path):
    with open(tmp_path / "prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(corpus_files.WrongUse, match="another prepare.sh is at work"):
            prepared(IWSLT, tmp_path, iwslt_data)


def test_several_processes_keep_the_order():
    numbers = list(range(7 * corpus_steps.BATCH))
    assert list(corpus_steps.in_order(str, iter(numbers), workers=2)) == list(map(str, numbers))
