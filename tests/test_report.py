"""Numbers, tables and files that are whole, provenanced and never overwritten unasked."""

import csv
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_transformer_plugin import report


@pytest.mark.parametrize(
    "number, text",
    [(0, "0"), (950, "950"), (999_600, "1.00M"), (54_144_000, "54.1M"), (1_337_794_560, "1.34G")],
)
def test_numbers_for_people(number, text):
    assert report.human(number) == text


def test_bytes_for_people():
    assert [report.human_bytes(n) for n in (640, 37_012, 18_137_088)] == [
        "0.6 KB",
        "37.0 KB",
        "18.1 MB",
    ]


@given(st.integers(min_value=1, max_value=10**12))
def test_human_keeps_three_digits(number):
    digits = report.human(number)
    assert report.parse_count(digits) == pytest.approx(number, rel=0.005)


@pytest.mark.parametrize("text", ["54M", "54m", "54000000", "0.054G", "5.4e7", " 54000K "])
def test_counts_are_read_in_any_unit(text):
    assert report.parse_count(text) == 54_000_000


@pytest.mark.parametrize("text", ["", "M", "54X", "-3M", "0", "nan", "inf", "1e30", "5 4"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(ValueError, match="54M"):
        report.parse_count(text)


def test_table_aligns_its_columns():
    table = report.format_table([["", "a", "bb"], ["long name", "1", "22"], ["x", "333", "4"]])
    assert table.split("\n") == [
        "             a  bb",
        "-" * 18,
        "long name    1  22",
        "x          333   4",
    ]


def test_csv_holds_every_column_of_every_row(tmp_path):
    rows = [{"name": "a, b", "x": 1}, {"name": "c", "y": 2.5}]
    report.write_csv(tmp_path / "out.csv", rows)
    with open(tmp_path / "out.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"name": "a, b", "x": "1", "y": ""},
            {"name": "c", "x": "", "y": "2.5"},
        ]


def test_json_keeps_plain_numbers_and_letters(tmp_path):
    report.write_json(tmp_path / "out.json", {"mult_adds": 54144000, "name": "größer"})
    text = (tmp_path / "out.json").read_text(encoding="utf-8")
    assert "54144000" in text and "größer" in text
    assert json.loads(text) == {"mult_adds": 54144000, "name": "größer"}


def test_nothing_is_overwritten_without_force(tmp_path):
    path = tmp_path / "out.json"
    report.write_json(path, 1)
    with pytest.raises(FileExistsError, match="--force"):
        report.write_json(path, 2)
    assert json.loads(path.read_text()) == 1
    report.write_json(path, 2, force=True)
    assert json.loads(path.read_text()) == 2


def test_a_failing_writer_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")

    def fail(file):
        file.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        report.write_atomically(path, fail, force=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_outputs_that_cannot_be_written_are_refused_beforehand(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        report.check_outputs([None, tmp_path / "missing" / "out.json"])
    with pytest.raises(IsADirectoryError, match="is a folder"):
        report.check_outputs([tmp_path], force=True)


def test_files_are_readable_by_others_as_usual(tmp_path):
    report.write_json(tmp_path / "out.json", 1)
    (tmp_path / "plain").write_text("")
    modes = [(tmp_path / name).stat().st_mode for name in ("out.json", "plain")]
    assert modes[0] == modes[1]


def test_provenance_names_command_versions_seed_and_date():
    made = report.provenance(["fairseq-profile", "--arch", "transformer"], seed=3)
    assert made["command"] == ["fairseq-profile", "--arch", "transformer"]
    assert made["seed"] == 3
    assert made["date"][:2] == "20"
    assert {"python", "torch", "lite-transformer-plugin"} < set(made["versions"])
    assert any("fairseq" in name for name in made["versions"])


def test_pictures_are_written_in_the_format_of_their_name(tmp_path):
    pytest.importorskip("matplotlib")
    figure = report.new_figure(2, 2)
    figure.subplots().plot([1, 2])
    report.save_figure(figure, tmp_path / "out.png")
    report.save_figure(figure, tmp_path / "out.svg")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out.svg").read_text()
    with pytest.raises(ValueError, match=".png"):
        report.save_figure(figure, tmp_path / "out.xyz")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"lite-transformer-plugin\[plots\]"):
        report.new_figure(1, 1)
