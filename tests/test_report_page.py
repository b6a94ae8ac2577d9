"""The page of a results folder: what is on it, and in a browser, where there is one."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lite_transformer_plugin.cli import prune_heads
from lite_transformer_plugin.cli.prune_heads_arguments import command, parse, settings
from lite_transformer_plugin.heads import format_heads, parse_heads
from lite_transformer_plugin.heads.report_page import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
# of a root without a sandbox, and with no word to the network
ALONE = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
ALONE += ["--disable-background-networking", "--disable-component-update"]

HEADS = parse_heads("E:1:1-16 E:2:1-16 A:1:1,2 D:1:2")
GONE = [[], HEADS[:3], HEADS]
NASTY = "/data/<b>&amp;</script><script>throw 1</script>/a/last.pt"
PROVENANCE = {
    "command": ["fairseq-prune-heads", "data", "--path", NASTY],
    "seed": 7,
    "versions": {"python": "3.11"},
}
SIGNATURE = "nrefs:1|case:mixed"


def ablation(kind: str) -> dict:
    rows = [{"head": str(h), "bleu": 30.0, "difference": -0.004, "p": 0.4} for h in HEADS]
    rows[1] |= {"bleu": 28.766, "difference": -1.234, "p": 0.001}
    return {"kind": kind, "base": 30.0, "signature": SIGNATURE, "rows": rows}


def results() -> dict[str, dict]:
    """What fairseq-prune-heads writes, by file; its rows are under "rows"."""
    figures = {"mean_offset": "in <tokens> & more", "share_next": "of maxima"}
    roles = [
        {"head": str(h), "importance": i / 100, "mean_offset": -1.5, "share_next": None}
        | {"roles": "", "relations": ""}
        for i, h in enumerate(HEADS)
    ]
    roles[3] |= {"roles": "positional -1", "relations": "a<b & c"}
    return {
        "importance": {
            "unit": "sentence",
            "normalised": True,
            "rows": [{"head": str(h), "importance": i / 100} for i, h in enumerate(HEADS)],
        },
        "curve": {
            "order": "importance",
            "parts": ["E", "A", "D"],
            "reestimated": False,
            "signature": SIGNATURE,
            "rows": [
                {"share": share, "heads_removed": len(gone), "bleu": bleu}
                | {"pruned_heads": format_heads(gone)}
                for share, bleu, gone in zip((0, 0.1, 1), (30.0, 29.5, 0.25), GONE, strict=True)
            ],
        },
        "dynamics": {
            "rows": [{"checkpoint": f"a/<{i}>.pt", "share": 0.1 * i, "bleu": 5.5} for i in (1, 2)]
        },
        "ablation": ablation("all-but-one"),
        "ablation-elsewhere": ablation("all-but-one"),
        "comparison": {
            "r": 0.876,
            "p": 0.00012,
            "heads": len(HEADS),
            "rows": [
                {"head": "E:1:2", "bleu": 28.0, "difference": -2.345, "p": 0.002}
                | {"difference_where_chosen": 0.5}
            ],
        },
        "roles": {"subset": "valid", "figures": figures, "rows": roles},
    }


HEADINGS = {
    "importance": "Importance of heads",
    "curve": "BLEU without heads",
    "dynamics": "In the course of training",
    "ablation": "BLEU with one head left in a layer",
    "ablation-elsewhere": "BLEU with one head left in a layer, on the other data",
    "comparison": "The same heads on other data",
    "roles": "Roles of heads on valid",
}


def fill(folder: Path, names=tuple(HEADINGS), **changes) -> Path:
    for name, found in results().items():
        if name in names:
            found |= changes.get(name, {})
            data = {"provenance": PROVENANCE, **found, name: found["rows"]}
            (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def headings(text: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", text)


def inline(text: str):
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(data)


def test_each_result_has_its_section(tmp_path):
    assert headings(page(fill(tmp_path))) == list(HEADINGS.values())


@pytest.mark.parametrize("name", HEADINGS)
def test_a_result_alone_is_shown_alone(tmp_path, name):
    text = page(fill(tmp_path, [name]))
    assert headings(text) == [HEADINGS[name]]
    assert ('id="share"' in text) == (name == "curve")
    assert f"Found {name}; seed 7; python 3.11." in text


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        page(tmp_path)


def test_figures_are_on_the_page(tmp_path):
    text = page(fill(tmp_path))
    assert 'title="E:1:3: 0.02" style="--level: 6%">0.020</td>' in text
    assert text.count('class="significant">\N{MINUS SIGN}1.23*</td>') == 2
    assert 'p = 0.4">0.00</td>' in text  # no sign before zero
    assert "Pearson r = 0.88, p = 0.00012, over 35 heads." in text
    assert "\N{MINUS SIGN}2.35*</td><td>0.002</td>" in text
    assert '<td class="text">positional -1</td><td>\N{MINUS SIGN}1.50</td><td>\N{EN DASH}' in text
    assert text.count("Best head of each layer</h3>") == 2
    assert "<td>5.50</td><td>\N{EN DASH}</td>" in text
    assert f"BLEU: {SIGNATURE}" in text


def test_the_slider_knows_what_is_gone_at_each_share(tmp_path):
    points = inline(page(fill(tmp_path)))
    assert [point["removed"] for point in points] == [[str(h) for h in gone] for gone in GONE]
    assert points[1]["text"] == (
        "10 % pruned: 3 of 35 heads removed, BLEU 29.50 (\N{MINUS SIGN}0.50)"
    )
    assert points[0]["y"] < points[1]["y"] < points[2]["y"]


def test_one_point_needs_no_slider(tmp_path):
    rows = results()["curve"]["rows"][:1]
    text = page(fill(tmp_path, ["importance", "curve"], curve={"rows": rows}))
    assert 'id="share"' not in text and "0 of 35 heads removed, BLEU 30.00</p>" in text


def test_scores_that_are_no_numbers_are_left_blank(tmp_path):
    rows = [{"head": str(h), "importance": float("nan")} for h in HEADS]
    text = page(fill(tmp_path, ["importance"], importance={"rows": rows}))
    assert text.count(">\N{EN DASH}</td>") == len(HEADS)


def test_text_is_escaped(tmp_path):
    text = page(fill(tmp_path))
    assert text.count("</script>") == 2 and "<b>" not in text
    assert "a/last.pt</title>" in text and html.escape(f"'{NASTY}'") in text
    for words in ("a<b & c", "in <tokens> & more", "a/<1>.pt"):
        assert html.escape(words) in text and words not in text


def test_nothing_comes_from_elsewhere(tmp_path):
    text = page(fill(tmp_path))
    assert not re.findall(r"https?://|@import|url\(", text)
    assert re.findall(r'(?:src|href)="(.*?)"', text) == ["data:,"]  # no icon is asked for


def test_the_same_folder_makes_the_same_page(tmp_path):
    fill(tmp_path)
    assert page(tmp_path) == page(tmp_path)


def test_results_of_two_commands_are_told_apart(tmp_path):
    fill(tmp_path, ["importance", "curve"])
    path = tmp_path / "curve.json"
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    text = page(tmp_path)
    assert "Found importance; seed 7" in text and "Found curve; seed 8" in text


# --- the command ----------------------------------------------------------------------------------


def test_a_folder_can_be_gone_on_with_for_its_report(tmp_path):
    words = ["data", "--path", __file__, "--results-dir", str(tmp_path)]
    without, given = (parse([*words, *more])[0] for more in ([], ["--report"]))
    assert given.report and not without.report
    assert settings(given, {}) == settings(without, {})
    assert command([*words, "--report"]) == command(words)


def test_the_command_ends_with_the_page(tmp_path, monkeypatch, capsys):
    def find(*args):
        fill(tmp_path)

    monkeypatch.setattr(prune_heads.processes, "run_in_processes", find)
    words = ["data", "--path", __file__, "--results-dir", str(tmp_path), "--report"]
    for _ in range(2):  # the page of an earlier run is replaced
        assert prune_heads.main(words) == 0
        assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(tmp_path)
        assert f"{tmp_path / 'report.html'}: open it" in capsys.readouterr().out


# --- in a browser ---------------------------------------------------------------------------------

LOOK = """
<script>
onload = () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, slider = page.getElementById("share");
    const looks = [];
    for (const value of [0, 1, 2, 1]) {
      slider.value = value;
      slider.dispatchEvent(new Event("input"));
      const gone = [...page.querySelectorAll("td.gone")].map(cell => cell.dataset.head);
      const marker = page.getElementById("marker").getAttribute("cy");
      looks.push([gone, page.getElementById("shown").textContent, Number(marker)]);
    }
    const wide = [...page.querySelectorAll(".scroll")].filter(b => b.scrollWidth > b.clientWidth);
    found[frame.clientWidth] = {
      looks, width: page.documentElement.scrollWidth, label: slider.labels[0].textContent,
      scrolling: wide.length, valuetext: slider.getAttribute("aria-valuetext"),
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
<pre id="found"></pre>
"""


def browse(folder: Path, text: str) -> tuple[dict, str]:
    """What a browser sees of a page in a narrow and in a wide window, and what it complains of."""
    frame = '<iframe width="{}" height="900" style="border: 0" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(width, html.escape(text)) for width in (390, 1280))
    (folder / "look.html").write_text(f'<meta charset="utf-8">{LOOK}{frames}', encoding="utf-8")
    words = [BROWSER, "--headless", *ALONE, f"--user-data-dir={folder / 'profile'}"]
    words += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"]
    address = (folder / "look.html").as_uri()
    done = subprocess.run([*words, address], capture_output=True, text=True, timeout=100)
    [seen] = re.findall('<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(seen)), "\n".join(complaints)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser(tmp_path):
    text = page(fill(tmp_path))
    found, complaints = browse(tmp_path, text)
    assert complaints == ""
    points = inline(text)
    for width in (390, 1280):
        seen = found[str(width)]
        assert seen["width"] <= width
        assert seen["label"] == "Share of heads pruned"
        assert seen["valuetext"] == points[1]["text"]
        for i, (gone, shown, marker) in zip((0, 1, 2, 1), seen["looks"], strict=True):
            assert gone == points[i]["removed"]
            assert shown == points[i]["text"] and marker == points[i]["y"]
    assert found["390"]["scrolling"] >= 4  # tables of 16 heads, in their own boxes
