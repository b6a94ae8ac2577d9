"""`fairseq-profile` from its command line: tables, files, pictures, and one line of complaint."""

import csv
import json
import subprocess
import sys

import pytest
import torch
from test_build import save, small

from lite_transformer_plugin.cli import profile as command
from lite_transformer_plugin.cli.profile import main

IWSLT = ["--arch", "transformer_iwslt_de_en_128", "lite_transformer_iwslt_de_en_160"]
IWSLT += ["--vocab", "6632"]
TINY = ["--encoder-embed-dim", "16", "--encoder-layers", "1", "--decoder-layers", "1"]


@pytest.fixture
def profile(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def profile(*argv: str) -> str:
        status = main(argv)
        out, err = capsys.readouterr()
        assert status == 0, err
        return out

    return profile


@pytest.fixture
def complaint(capsys, tmp_path, monkeypatch):
    """Run the command; returns its one line about what is wrong."""
    monkeypatch.chdir(tmp_path)

    def complaint(*argv: str) -> str:
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("fairseq-profile: ") and err.count("\n") == 1
        return err

    return complaint


def lines_of(table: str) -> dict[str, list[str]]:
    """Cells by the label in front of them."""
    split = [line.strip().split("  ") for line in table.splitlines()]
    return {cells[0]: [c.strip() for c in cells[1:] if c.strip()] for cells in reversed(split)}


def test_models_stand_side_by_side(profile):
    table = profile(*IWSLT)
    lines = lines_of(table)
    assert lines["parameters"] == ["4.53M", "4.90M", "1.08x"]
    assert lines["without embeddings"] == ["2.84M", "2.77M", "0.98x"]
    assert lines["bytes as float32"] == ["18.1 MB", "19.6 MB", "1.08x"]
    assert lines["Mult-Adds"] == ["63.1M", "54.7M", "0.87x"]
    assert lines["fits a phone"] == ["yes", "yes"]
    assert lines["embeddings"] == ["37.4 %", "43.3 %"]
    assert lines["convolution"][0] == "-"
    assert "with convolution taps" in table
    # why IWSLT's published parameters hold an output layer and WMT's do not
    assert "transformer_iwslt_de_en_128: 'without embeddings' has 848.9K parameters" in table


def test_shares_add_up(profile):
    table = profile(*IWSLT[:2], "--vocab", "100", "--convention", "full")
    block = table[table.index("share of Mult-Adds") :].splitlines()[1:]
    shares = [line.split() for line in block if line.startswith("  ")]
    places = [float(v) for name, v, _ in shares if name in ("encoder", "decoder", "output")]
    parts = [float(v) for name, v, _ in shares if name not in ("encoder", "decoder")]
    assert sum(places) == pytest.approx(100, abs=0.2)
    assert sum(parts) == pytest.approx(100, abs=0.3)


def test_json_holds_plain_counts_and_how_they_were_made(profile, tmp_path):
    argv = [*IWSLT, "--convention", "paper", "--no-taps", "--json", "out.json"]
    profile(*argv)
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["provenance"]["command"] == ["fairseq-profile", *argv]
    assert data["settings"] == {
        "source_tokens": 30,
        "target_tokens": 30,
        "convention": "paper",
        "taps": False,
    }
    transformer, lite = data["models"]
    # the paper prints 63M and 54M; without taps both are met within 0.5 %
    assert (transformer["mult_adds"], lite["mult_adds"]) == (63129600, 54144000)
    assert lite["parameters_without_embeddings"] == 2774704
    assert lite["relative"]["mult_adds"] == pytest.approx(54144000 / 63129600, abs=1e-4)
    assert sum(lite["mult_adds_by_part"].values()) == lite["mult_adds"]


def test_csv_has_a_line_for_every_model(profile, tmp_path):
    profile(*IWSLT, "--csv", "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == IWSLT[1:3]
    assert rows[1]["mult_adds"] == "54710400"
    assert float(rows[1]["relative.mult_adds"]) < 0.9
    assert rows[0]["mult_adds_by_part.convolution"] == "0"


def test_lengths_and_flags_of_the_architecture_are_heeded(profile, tmp_path):
    argv = ["--arch", "transformer", "--vocab", "50", *TINY, "--src-len", "7", "--tgt-len", "3"]
    profile(*argv, "--convention", "full", "--json", "out.json")
    [model] = json.loads((tmp_path / "out.json").read_text())["models"]
    d, ffn, n, m = 16, 2048, 7, 3
    encoder = n * (4 * d * d + 2 * d * ffn) + 2 * n * n * d
    decoder = m * (4 * d * d + 2 * d * ffn) + 2 * m * m * d
    cross = 2 * m * d * d + 2 * n * d * d + 2 * m * n * d
    assert model["mult_adds"] == encoder + decoder + cross + m * 50 * d
    assert model["fits_phone"]


def test_checkpoints_are_profiled_without_their_data(profile, tmp_path):
    model, args = small("lite_transformer", (30, 40))
    save(tmp_path / "full.pt", model, args)
    save(tmp_path / "half.pt", model.half(), args)
    table = profile("--path", "full.pt", "half.pt", "full.pt", "--json", "out.json")
    full, half, again = json.loads((tmp_path / "out.json").read_text())["models"]
    assert again["name"] == "full.pt (2)"
    assert full["parameters"] == sum(p.numel() for p in model.parameters())
    assert full["bytes_fp32"] == half["bytes_fp32"] == 4 * full["parameters"]
    # beside the parameters, a checkpoint stores a few one-number buffers
    assert full["bytes_stored"] == pytest.approx(4 * full["parameters"], abs=40)
    assert half["bytes_stored"] == pytest.approx(2 * full["parameters"], abs=40)
    assert "bytes as stored" in table


def test_latency_is_measured(profile, tmp_path):
    argv = ["--arch", "transformer", "lite_transformer", "--vocab", "50", *TINY, "--latency"]
    argv += ["--repeats", "2", "--warmup", "0", "--src-len", "4", "--tgt-len", "3"]
    table = profile(*argv, "--batch-size", "2", "--json", "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    for model in data["models"]:
        assert list(model["latency_ms"]) == ["encoder", "decoder step", "beam search"]
        for timing in model["latency_ms"].values():
            assert 0 < timing["lower"] <= timing["median"] <= timing["upper"]
    assert data["settings"]["threads"] == 1 and data["settings"]["batch_size"] == 2
    assert "beam search, ms" in table and "2 turns, 1 thread(s), batch 2, beam 4" in table


def test_find_width_needs_no_vocabulary(profile, tmp_path):
    argv = ["--arch", "transformer_iwslt_de_en_128", "--find-width", "54M"]
    lines = lines_of(profile(*argv, "--json", "out.json", "--csv", "out.csv"))
    assert lines["transformer_iwslt_de_en_128, nearest"] == ["120", "55.7M", "+3.2 %"]
    assert lines["transformer_iwslt_de_en_128, within budget"] == ["116", "52.2M", "-3.3 %"]
    nearest, within = json.loads((tmp_path / "out.json").read_text())["widths"]
    assert (nearest["embed_dim"], nearest["mult_adds"], nearest["budget"]) == (
        120,
        55728000,
        54000000,
    )
    assert "--encoder-embed-dim 120 --encoder-ffn-embed-dim 240" in nearest["flags"]
    again = profile("--arch", argv[1], *nearest["flags"].split(), "--vocab", "100")
    assert lines_of(again)["Mult-Adds"] == ["55.7M"]


def test_lengths_as_table_and_picture(profile, tmp_path):
    pytest.importorskip("matplotlib")
    argv = ["--lengths", "10:1000", "--embed-dim", "64", "--plot", "out.png"]
    table = profile(*argv, "--csv", "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 7
    assert {row["length"] for row in rows} == {"10", "20", "50", "100", "200", "500", "1000"}
    assert "attention, flat FFN" in table and "LSRA, flat FFN" in table
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_lengths_of_given_models(profile, tmp_path):
    profile("--lengths", "5:10", "--arch", "transformer", *TINY, "--json", "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["shares"]
    assert [(row["model"], row["length"]) for row in rows] == [
        ("transformer", 5),
        ("transformer", 10),
    ]


def test_plot_lays_results_over_the_published_points(profile, tmp_path):
    pytest.importorskip("matplotlib")
    row = {"benchmark": "iwslt14_de_en", "model": "mine", "mult_adds": 54144000, "score": 30.0}
    (tmp_path / "r.json").write_text(json.dumps({"results": [row]}))
    table = profile("--plot", "out.svg", "r.json")
    assert "Evolved Transformer" in table and "2,200,000" in table
    names = {path.name for path in tmp_path.glob("out*")}
    assert "out.svg" in names and len(names) == 5
    assert "out-iwslt14_de_en.svg" in names


def test_bad_input_is_one_line(complaint, tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"a": 1}, tmp_path / "other.pt")
    (tmp_path / "taken.json").write_text("{}")
    arch = ["--arch", "transformer", "--vocab", "50"]
    for words, argv in {
        "nothing to do": [],
        "not there": ["--path", "missing.pt"],
        "text.pt is not a": ["--path", "text.pt"],
        "other.pt is not a fairseq checkpoint": ["--path", "other.pt"],
        "did you mean transformer_iwslt_de_en": ["--arch", "transformer_iwslt_de", "--vocab", "9"],
        "needs --vocab": ["--arch", "transformer"],
        "a vocabulary of 0": ["--arch", "transformer", "--vocab", "0"],
        "at least 1, not 0 source": [*arch, "--src-len", "0"],
        "at least 1, not 30 source and -2": [*arch, "--tgt-len", "-2"],
        "--threads (0)": [*arch, "--latency", "--threads", "0"],
        "the narrowest, 8, costs": [*arch, "--find-width", "1K"],
        "write 54M": [*arch, "--find-width", "many"],
        "give --arch, and no --path": ["--path", "text.pt", "--find-width", "54M"],
        "as 10:1000": ["--lengths", "1000:10"],
        "only one of": [*arch, "--latency", "--lengths", "1:2"],
        "taken.json exists": [*arch, "--json", "taken.json"],
        "no folder": [*arch, "--csv", "missing/out.csv"],
        "must end in .png": ["--plot", "out.gif"],
        "r.json is not there": ["--plot", "out.png", "r.json"],
        "taken.json holds no results": ["--plot", "out.png", "taken.json"],
        "without models": [*arch, "--plot", "out.png"],
        "--encoder-embd-dim": [*arch, "--encoder-embd-dim", "16"],
        "unrecognized arguments: --verbose": ["--verbose", "--path", "text.pt"],
        "'both'": [*arch, "--convention", "both"],
        "must be even": ["--arch", "lite_transformer", "--vocab", "9", "--encoder-embed-dim", "15"],
        "--user-dir missing is not a folder": [*arch, "--user-dir", "missing"],
    }.items():
        assert words in complaint(*argv), argv
    assert (tmp_path / "taken.json").read_text() == "{}"


def test_force_replaces(profile, tmp_path):
    (tmp_path / "out.json").write_text("old")
    profile("--arch", "transformer", "--vocab", "9", *TINY, "--json", "out.json", "--force")
    assert json.loads((tmp_path / "out.json").read_text())["models"]


def test_without_matplotlib_the_extra_is_named(complaint, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install lite-transformer-plugin[plots]" in complaint("--plot", "out.png")


def test_a_foreign_plugin_brings_its_architectures(profile, tmp_path):
    (tmp_path / "foreign_plugin").mkdir()
    (tmp_path / "foreign_plugin" / "__init__.py").write_text(
        "from fairseq.models import register_model_architecture\n"
        "@register_model_architecture('transformer', 'foreign_tiny')\n"
        "def fill(args):\n"
        "    from fairseq.models import ARCH_CONFIG_REGISTRY\n"
        "    args.encoder_embed_dim = 16\n"
        "    ARCH_CONFIG_REGISTRY['transformer'](args)\n"
    )
    table = profile("--arch", "foreign_tiny", "--vocab", "9", "--user-dir", "foreign_plugin")
    assert "foreign_tiny" in table


def test_the_console_script_exits_with_the_status(monkeypatch, capsys):
    monkeypatch.setattr(command, "quiet_logs", lambda: None)  # it takes pytest's handlers away
    monkeypatch.setattr(sys, "argv", ["fairseq-profile", "--arch", "x", "--vocab", "9"])
    with pytest.raises(SystemExit) as stopped:
        command.cli_main()
    assert stopped.value.code == 2
    assert "unknown architecture 'x'" in capsys.readouterr().err


def test_the_command_itself_prints_its_table_only(tmp_path):
    words = [sys.executable, "-W", "ignore", "-m", "lite_transformer_plugin.cli.profile"]
    words += ["--arch", "lite_transformer_wmt_en_de_200", "--vocab", "100"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(done.stdout)["Mult-Adds"] == ["90.7M"]
