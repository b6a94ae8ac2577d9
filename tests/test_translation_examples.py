"""The translation experiments: text steps, settings, downloads, and every script end to end.

The corpora cannot be had here: slices of the committed one take their places under their names.
"""

import fcntl
import gzip
import importlib.util
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import threading
import tomllib
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
import torch
from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed.utils import infer_init_method
from fairseq.optim.lr_scheduler import build_lr_scheduler

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SHARED = EXAMPLES / "translation"
IWSLT, EN_DE, EN_FR = "iwslt14.de-en", "wmt16.en-de", "wmt14.en-fr"
ARCHIVE = EXAMPLES / "quickstart/data/lohelp-de.tar.xz"
PUBLISHED = json.loads((ROOT / "lite_transformer_plugin/published.json").read_text())
ONE_LAYER = "--encoder-layers 1 --decoder-layers 1".split()
ONE_LAYER += "--encoder-kernel-size-list 3 --decoder-kernel-size-list 3".split()


def load(name: str):
    """A module of the examples, which are no package."""
    spec = importlib.util.spec_from_file_location(f"translation_{name}", SHARED / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(SHARED))  # they import each other
import corpus_files  # noqa: E402
import text_steps  # noqa: E402

prepare, score = load("prepare"), load("score")
sys.path.remove(str(SHARED))


def script(example: str, name: str, *words, path: str = "", **settings):
    """Run a script of an example from another folder, without a GPU unless GPUS says so."""
    path += f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(EXAMPLES / example / f"{name}.sh"), *map(str, words)],
        cwd="/",
        env=os.environ
        | {"PATH": path, "OMP_NUM_THREADS": "1", "GPUS": "0"}
        | {key: str(value) for key, value in settings.items()},
        capture_output=True,
        text=True,
        timeout=600,
    )


def stand_in(path: Path, commands: str, shell: str = "/bin/sh") -> None:
    """A program that takes the place of another one on PATH."""
    path.write_text(f"#!{shell}\n{commands}\n")
    path.chmod(0o755)


def succeeded(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# --- text steps -----------------------------------------------------------------------------------

TRAIN_TAGS = """<url>http://example.org/talk</url>
<keywords>talks, sea</keywords>
<talkid>12</talkid>
<title>Am Meer</title>
<description>Ein Vortrag.</description>
 Guten Morgen.
 Das Meer ist <tief>. """


def test_talk_sentences():
    found = list(text_steps.talk_sentences(TRAIN_TAGS.split("\n")))
    assert found == ["Am Meer", "Ein Vortrag.", "Guten Morgen.", "Das Meer ist <tief>."]


def test_segments_of_xml_and_sgm():
    markup = """<doc docid="1"><title>No sentence</title>
    <seg id="1"> One &amp; two: &quot;three&quot;. </seg><seg id="2">Four
    five.</seg>
    <SEG id="3"></SEG></doc>"""
    assert text_steps.segments(markup) == ['One & two: "three".', "Four five.", ""]


# What Moses wrote (revision 34452895f): tokenizer.perl, with option -a, normalize-punctuation.perl.
TOKENISED = [
    ("de", False, "Das ist z. B. ein Test, oder?", "Das ist z. B. ein Test , oder ?"),
    ("de", False, "Der Wert ist 1.", "Der Wert ist 1 ."),  # sacremoses alone leaves `1.`
    ("de", False, "Extras - Makros...", "Extras - Makros ..."),
    ("de", True, "E-Mail: [A|B]", "E @-@ Mail : &#91; A &#124; B &#93;"),
    ("en", False, "It's Mr. Smith's, isn't it?", "It &apos;s Mr. Smith &apos;s , isn &apos;t it ?"),
    ("en", True, "A well-known page.", "A well @-@ known page ."),
    ("fr", True, "L'homme : dit-il.", "L&apos; homme : dit @-@ il ."),
]


@pytest.mark.parametrize("language, dashes, sentence, expected", TOKENISED)
def test_tokenise_is_moses(language, dashes, sentence, expected):
    assert text_steps.tokenise(sentence, language, dashes) == expected


@pytest.mark.parametrize(
    "language, tokens, expected",
    [
        ("de", "E @-@ Mail : &#91; A &#124; B &#93; .", "E-Mail: [A | B]."),
        ("en", "it &apos;s mr. smith &apos;s , isn &apos;t it ?", "it's mr. smith's, isn't it?"),
        ("en", "he said &quot; stop &quot; ( now ) .", 'he said "stop" (now).'),
        ("fr", "L&apos; homme : dit @-@ il .", "L'homme : dit-il."),
    ],
)
def test_detokenise_is_moses(language, tokens, expected):
    assert text_steps.detokenise(tokens, language) == expected


@pytest.mark.parametrize(
    "language, sentence, expected",
    [
        ("de", "„Ja“, sagte er.", '"Ja", sagte er.'),
        ("en", 'He said "stop".', 'He said "stop."'),
        ("de", 'Er sagte "halt."', 'Er sagte "halt".'),  # sacremoses alone leaves it
        ("fr", "Là\u00a0: «\u00a0oui\u00a0», 1\u00a0000\x07", 'Là: "oui", 1,000 '),
    ],
)
def test_normalise_is_moses(language, sentence, expected):
    assert text_steps.normalise(sentence, language) == expected


@pytest.mark.parametrize(
    "source, target, clean",
    [
        ("a b c", "a b", True),  # 3 / 2 is not above 1.5
        ("a b", "a b c d", False),
        ("", "a", False),
        ("a " * 175, "a " * 175, True),
        ("a " * 176, "a " * 175, False),
        ("a" * 1000, "b", True),
        ("a" * 1001, "b", False),
    ],
)
def test_is_clean(source, target, clean):
    assert text_steps.is_clean(source, target, shortest=1, longest=175, ratio=1.5) is clean
    assert text_steps.is_clean(target, source, shortest=1, longest=175, ratio=1.5) is clean


def test_compounds_are_split_for_the_score():
    assert text_steps.split_compounds("rot-grün-blau - E-Mail -") == (
        "rot ##AT##-##AT## grün ##AT##-##AT## blau - E ##AT##-##AT## Mail -"
    )


def test_steps_in_their_order(tmp_path):
    """The committed lines of both languages, through the steps of WMT'14 En-Fr and IWSLT'14."""
    pair = ("L\u2019ÉTÉ\u00a0: E-Mail.", "It\u2019s E-mail.")
    steps = {example: corpus(example)["steps"] for example in (IWSLT, EN_FR)}
    tokens = partial(prepare.to_tokens, pair, ("fr", "en"))
    assert tokens(steps[EN_FR], training=True) == (
        "L &quot; ÉTÉ : E @-@ Mail .",  # what Moses' normalisation makes of that apostrophe
        "It &apos;s E @-@ mail .",
    )
    assert tokens(steps[EN_FR], training=False)[0] == "L&apos; ÉTÉ : E @-@ Mail ."
    assert tokens(steps[IWSLT], training=True)[1] == "it ’ s e-mail ."
    assert tokens(steps[IWSLT], training=False)[1] == "it &apos;s e-mail ."


# --- what is prepared -----------------------------------------------------------------------------


def corpus(example: str) -> dict:
    return tomllib.loads((EXAMPLES / example / "corpus.toml").read_text())


@pytest.mark.parametrize(
    "example, merges, lowercase, clean, held_out, dictionary",
    [
        (IWSLT, 10000, True, ("clean_tokens", 1.5, 1, 175), 23, []),
        (EN_DE, 32000, False, ("clean_tokens", 9, 1, 80), None, "--joined-dictionary"),
        (EN_FR, 40000, False, ("clean_pieces", 1.5, 1, 250), 1333, ["--joined-dictionary"]),
    ],
)
def test_corpora_are_the_papers(example, merges, lowercase, clean, held_out, dictionary):
    steps = corpus(example)["steps"]
    kind, ratio, shortest, longest = clean
    assert steps["bpe_merges"] == merges and steps["lowercase"] is lowercase
    assert steps[kind] == dict(ratio=ratio, shortest=shortest, longest=longest)
    assert steps.get("hold_out") == held_out
    assert dictionary == steps["dictionary"] or dictionary in steps["dictionary"]


def lines(split: str, language: str, start: int, count: int) -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        text = archive.extractfile(f"lohelp-de/{split}.{language}").read().decode()
    return text.split("\n")[start : start + count]


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def markup(sentences: list[str]) -> str:
    segments = (f'<seg id="{n}"> {escape(s)} </seg>\n' for n, s in enumerate(sentences, 1))
    return "<doc>\n" + "".join(segments) + "</doc>\n"


def plain(sentences: list[str]) -> str:
    return "".join(sentence + "\n" for sentence in sentences)


@pytest.fixture(scope="module")
def iwslt_data(tmp_path_factory) -> Path:
    """`de-en.tgz`: a talk of 240 sentences, five test files of two."""
    folder = tmp_path_factory.mktemp("iwslt")
    with tarfile.open(folder / "de-en.tgz", "w:gz") as archive:
        for language in ("de", "en"):
            talk = TRAIN_TAGS.split("\n")[:3] + lines("train", language, 0, 240)
            add(archive, f"de-en/train.tags.de-en.{language}", plain(talk).encode())
            test = lines("test", language, 0, 10)
            for n, name in enumerate("TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011".split()):
                content = markup(test[2 * n : 2 * n + 2]).encode()
                add(archive, f"de-en/IWSLT14.{name}.de-en.{language}.xml", content)
            content = markup(test[8:]).encode()
            add(archive, f"de-en/IWSLT14.TED.tst2012.de-en.{language}.xml", content)
    return folder


@pytest.fixture(scope="module")
def en_de_data(tmp_path_factory) -> Path:
    """Files that have been unpacked, in two folders."""
    folder = tmp_path_factory.mktemp("en_de")
    (folder / "dev").mkdir()
    for language, side in (("en", "src"), ("de", "ref")):
        names = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v11.de-en")
        for n, name in enumerate(names):
            text = plain(lines("train", language, 130 * n, 130))
            (folder / f"{name}.{language}").write_text(text)
        valid = markup(lines("valid", language, 0, 10))
        (folder / f"dev/newstest2013-src.{language}.sgm").write_text(valid)
        test = markup(lines("test", language, 0, 10))
        (folder / f"dev/newstest2014-deen-{side}.{language}.sgm").write_text(test)
    return folder


@pytest.fixture(scope="module")
def en_fr_data(tmp_path_factory) -> Path:
    """German plays French. One archive, one compressed file in it, the rest unpacked."""
    folder = tmp_path_factory.mktemp("en_fr")
    names = ("europarl-v7.fr-en", "commoncrawl.fr-en", "undoc.2000.fr-en")
    with tarfile.open(folder / "training-giga-fren.tar", "w") as archive:
        for language, ours, side in (("en", "en", "src"), ("fr", "de", "ref")):
            for n, name in enumerate((*names, "news-commentary-v9.fr-en")):
                text = plain(lines("train", ours, 270 * n, 270))
                (folder / f"{name}.{language}").write_text(text)
            giga = gzip.compress(plain(lines("train", ours, 1080, 270)).encode())
            add(archive, f"giga-fren.release2.fixed.{language}.gz", giga)
            test = markup(lines("test", ours, 0, 10))
            (folder / f"newstest2014-fren-{side}.{language}.sgm").write_text(test)
    return folder


def read(path: Path) -> list[str]:
    return path.read_text().rstrip("\n").split("\n")


@pytest.fixture
def no_binarising(monkeypatch):
    monkeypatch.setattr(prepare.Preparation, "binarise", lambda self: None)


def prepared(example: str, work: Path, data: Path, *words) -> Path:
    options = ["--data", data, "--work", work, "--workers", 1, "--bpe-merges", 100, *words]
    prepare.prepare([str(word) for word in (EXAMPLES / example, *options)])
    return work


def test_iwslt_text(iwslt_data, tmp_path, no_binarising):
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


def test_the_merges_are_those_of_subword_nmt(iwslt_data, tmp_path, no_binarising):
    work = prepared(IWSLT, tmp_path / "work", iwslt_data)
    both = (work / "words/train.de").read_text() + (work / "words/train.en").read_text()
    expected = io.StringIO()
    prepare.learn_bpe(io.StringIO(both), expected, 100)
    assert (work / "bpe.codes").read_text() == expected.getvalue()


def test_own_sentences_take_the_place_of_the_corpus(tmp_path, no_binarising):
    data = tmp_path / "data"
    data.mkdir()
    for language in ("en", "de"):
        for split, count in (("train", 60), ("valid", 5), ("test", 6)):
            (data / f"{split}.{language}").write_text(plain(lines("train", language, 0, count)))
    work = prepared(EN_DE, tmp_path / "work", data)
    assert [len(read(work / f"pieces/{split}.de")) for split in ("valid", "test")] == [5, 6]
    assert read(work / "raw/test.de") == lines("train", "de", 0, 6)
    (data / "valid.de").unlink()
    with pytest.raises(corpus_files.WrongUse, match="has no valid"):
        prepared(EN_DE, tmp_path / "other", data)


def test_the_authors_preprocessed_archive(tmp_path, no_binarising):
    archive = tmp_path / "whatever.tar.gz"
    names = ("train.tok.clean.bpe.32000", "newstest2013.tok.bpe.32000")
    names += ("newstest2014.tok.bpe.32000", "newstest2014")
    with tarfile.open(archive, "w:gz") as file:
        for name in names:
            for language in ("en", "de"):
                add(file, f"{name}.{language}", f"{name} in {language}@@ .\n".encode())
    work = prepared(EN_DE, tmp_path / "work", archive)
    assert read(work / "pieces/train.de") == ["train.tok.clean.bpe.32000 in de@@ ."]
    assert read(work / "pieces/valid.en") == ["newstest2013.tok.bpe.32000 in en@@ ."]
    assert read(work / "raw/test.de") == ["newstest2014 in de@@ ."]


def test_force_prepares_anew(iwslt_data, tmp_path, no_binarising):
    work = prepared(IWSLT, tmp_path / "work", iwslt_data)
    before = read(work / "bpe.codes")
    with pytest.raises(corpus_files.WrongUse, match="other settings"):
        prepared(IWSLT, work, iwslt_data, "--bpe-merges", 50)
    assert read(work / "bpe.codes") == before
    prepared(IWSLT, work, iwslt_data, "--bpe-merges", 50, "--force")
    assert read(work / "bpe.codes") == before[:51]


def test_an_interrupted_preparation_goes_on(iwslt_data, tmp_path, no_binarising, monkeypatch):
    """Stopped while the pieces are written: no half file, and the words are not made again."""
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "to_pieces", lambda pair, path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepared(IWSLT, tmp_path / "work", iwslt_data)
    work = tmp_path / "work"
    made = (work / "words/train.de").stat().st_mtime_ns
    assert not (work / "pieces/train.de").exists()
    prepared(IWSLT, work, iwslt_data)
    assert (work / "words/train.de").stat().st_mtime_ns == made
    assert len(read(work / "pieces/train.de")) == len(read(work / "words/train.de"))


def test_two_preparations_at_once_are_refused(iwslt_data, tmp_path, no_binarising):
    with open(tmp_path / "prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(corpus_files.WrongUse, match="another prepare.sh is at work"):
            prepared(IWSLT, tmp_path, iwslt_data)


def test_sides_of_different_length_are_refused(en_de_data, tmp_path, no_binarising):
    (tmp_path / "data").mkdir()
    for path in en_de_data.rglob("*.*"):
        (tmp_path / "data" / path.name).write_text(path.read_text())
    with open(tmp_path / "data/commoncrawl.de-en.de", "a") as file:
        file.write("Eine Zeile zu viel.\n")
    with pytest.raises(corpus_files.Failure, match="commoncrawl.*differ in their number"):
        prepared(EN_DE, tmp_path / "work", tmp_path / "data")
    assert not (tmp_path / "work/words/train.de").exists()


def test_several_processes_keep_the_order():
    numbers = list(range(7 * prepare.BATCH))
    assert list(prepare.in_order(str, iter(numbers), workers=2)) == list(map(str, numbers))


# --- downloads ------------------------------------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """Serves `content`; breaks off after `limit` bytes of it."""

    content = random.Random(1).randbytes(100_000)
    limit = None
    ranges = []

    def do_GET(self):
        if self.path != "/file":
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted[6:-1]) if wanted else 0
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.end_headers()
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : self.limit])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"ranges": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{http.server_port}"
        yield handler
        http.shutdown()


def test_a_download_goes_on_where_it_broke_off(server, tmp_path):
    target = tmp_path / "file"
    server.limit = 40_000
    with pytest.raises(OSError, match="broke off after 40000 of 100000"):
        corpus_files.download(server.url + "/file", target)
    assert not target.exists()
    server.limit = None
    corpus_files.download(server.url + "/file", target)
    assert target.read_bytes() == server.content
    assert server.ranges == [None, "bytes=40000-"]


def test_a_download_that_was_complete_but_for_its_name(server, tmp_path):
    (tmp_path / "file.part").write_bytes(server.content)
    corpus_files.download(server.url + "/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_checksums(tmp_path):
    archive, record = tmp_path / "archive", tmp_path / "archive.checksum"
    archive.write_bytes(b"abc")
    known = "md5:900150983cd24fb0d6963f7d28e17f72"  # RFC 1321
    corpus_files.verified(archive, known, record)
    assert not record.exists()
    corpus_files.verified(archive, None, record)  # nothing to compare with: noted
    corpus_files.verified(archive, None, record)
    archive.write_bytes(b"abd")
    for expected in (known, None):
        with pytest.raises(corpus_files.Failure, match="expected"):
            corpus_files.verified(archive, expected, record)


def test_an_address_that_is_gone(server, tmp_path):
    """One line that says what to do, and exit status 1."""
    example = tmp_path / "example"
    example.mkdir()
    text = (EXAMPLES / IWSLT / "corpus.toml").read_text()
    url = corpus(IWSLT)["archives"]["de-en.tgz"]["url"]
    (example / "corpus.toml").write_text(text.replace(url, server.url + "/gone"))
    result = subprocess.run(
        [sys.executable, str(SHARED / "prepare.py"), str(example)], capture_output=True, text=True
    )
    assert result.returncode == 1
    message = result.stderr.splitlines()[-1]
    assert "/gone (HTTP Error 404: Not Found): get de-en.tgz elsewhere" in message
    assert "--data FOLDER" in message and "Traceback" not in result.stderr


def test_a_damaged_archive(tmp_path, no_binarising):
    (tmp_path / "de-en.tgz").write_bytes(gzip.compress(b"no archive")[:-3])
    with pytest.raises(corpus_files.Failure, match="de-en.tgz is damaged"):
        prepared(IWSLT, tmp_path / "work", tmp_path)


# --- settings of training -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_work(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("empty")
    (work / "data-bin").mkdir()
    return work


def dry_run(example: str, work: Path, *words, **settings) -> list[str]:
    output = succeeded(script(example, "train", *words, WORK=work, DRY_RUN=1, **settings))
    return shlex.split(output.splitlines()[-1])


def configuration(command: list[str]):
    """What today's fairseq makes of a command line of fairseq-train."""
    assert Path(command[0]).name == "fairseq-train"
    args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
    return convert_namespace_to_omegaconf(args)


WMT = dict(weight_decay=0, warmup_init_lr=1e-7, lr=[0.001], t_mult=1, lr_shrink=1, min_lr=1e-9)
SETTINGS = [
    (
        IWSLT,
        (160, 240, 320),
        [(0.2, 0, 0.1)] * 3,
        dict(weight_decay=1e-4, warmup_init_lr=1e-7, lr=[5e-4], warmup_updates=4000),
    ),
    (
        EN_DE,
        (200, 408, 496),
        [(0.04, 0.03, 0.03), (0.08, 0.06, 0.06), (0.1, 0.08, 0.08)],
        dict(warmup_updates=10000, lr_period_updates=40000, **WMT),
    ),
    (
        EN_FR,
        (200, 408, 496),
        [(0.04, 0.03, 0.03), (0.08, 0.07, 0.07), (0.1, 0.08, 0.08)],
        dict(warmup_updates=5000, lr_period_updates=45000, **WMT),
    ),
]


@pytest.mark.parametrize("example, sizes, rates, expected", SETTINGS)
def test_settings_are_the_authors(example, sizes, rates, expected, empty_work):
    for size, noise in zip(sizes, rates, strict=True):
        cfg = configuration(dry_run(example, empty_work, SIZE=size))
        assert cfg.model.encoder_embed_dim == size
        found = (cfg.model.dropout, cfg.model.attention_dropout, cfg.model.weight_dropout)
        assert found == noise
        assert cfg.model.get("share_all_embeddings") is (example != IWSLT)
        assert cfg.criterion.label_smoothing == 0.1 and cfg.optimizer.adam_betas == "(0.9, 0.98)"
        assert cfg.optimization.max_update == 50000 and not cfg.common.fp16
        both = {**cfg.optimizer, **cfg.lr_scheduler}
        assert {name: both[name] for name in expected} == expected


@pytest.mark.parametrize("example, warmup", [(EN_DE, 10000), (EN_FR, 5000)])
def test_the_cosine_rises_to_its_maximum_and_falls_to_nothing(example, warmup, empty_work):
    cfg = configuration(dry_run(example, empty_work))
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    scheduler = build_lr_scheduler(cfg.lr_scheduler, optimizer)
    rates = [scheduler.step_update(n) for n in (0, warmup, 49999)]
    assert rates == pytest.approx([1e-7, 1e-3, 1e-9], abs=1e-9, rel=1e-6)


@pytest.mark.parametrize(
    "example, model, size, arch",
    [
        (IWSLT, "transformer", 128, "transformer_iwslt_de_en_128"),
        (IWSLT, "lightconv", 256, "lightconv_iwslt_de_en_256"),
        (EN_DE, "transformer", 320, "transformer_wmt_320"),
        (EN_FR, "transformer", 512, "transformer_wmt_en_de"),
    ],
)
def test_baselines(example, model, size, arch, empty_work):
    cfg = configuration(dry_run(example, empty_work, MODEL=model, SIZE=size))
    assert cfg.model._name == arch and cfg.model.encoder_embed_dim == size
    assert cfg.model.share_all_embeddings is (example != IWSLT)


@pytest.mark.parametrize(
    "example, settings, max_tokens, update_freq, processes",
    [
        (IWSLT, dict(GPUS=0), 4096, 1, 1),
        (IWSLT, dict(GPUS=1), 4096, 1, 1),
        (IWSLT, dict(GPUS=4), 1024, 1, 4),
        (EN_DE, dict(GPUS=0), 4096, 128, 1),
        (EN_DE, dict(GPUS=8), 4096, 16, 8),
        (EN_DE, dict(GPUS=4), 4096, 32, 4),
        (EN_DE, dict(GPUS=1, MAX_TOKENS=16384), 16384, 32, 1),
        (EN_FR, dict(GPUS=8, NODES=2, MASTER="first.host:29500"), 4096, 8, 16),
    ],
)
def test_the_update_stays_the_same(
    example, settings, max_tokens, update_freq, processes, empty_work
):
    command = dry_run(example, empty_work, **settings)
    flags = dict(zip(command, command[1:], strict=False))
    assert flags["--max-tokens"] == str(max_tokens)
    assert flags["--update-freq"] == str(update_freq)
    assert flags["--distributed-world-size"] == str(processes)
    assert ("--cpu" in command) is (settings["GPUS"] == 0)
    assert ("--fp16" in command) is (settings["GPUS"] > 0)


NOTE_THE_START = """import json, os, pathlib, sys
names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"]
found = dict(words=sys.argv, environment={name: os.environ[name] for name in names})
pathlib.Path(sys.argv[0]).with_name(os.environ["RANK"] + ".json").write_text(json.dumps(found))"""


def test_two_machines_with_torchrun(empty_work, tmp_path, monkeypatch):
    """torchrun itself, on one machine twice; fairseq-train only notes how it was started."""
    stand_in(tmp_path / "fairseq-train", NOTE_THE_START, sys.executable)
    master = f"127.0.0.1:{random.randint(20000, 60000)}"
    settings = dict(WORK=empty_work, GPUS=1, NODES=2, MASTER=master, path=f"{tmp_path}:")
    started = partial(script, EN_DE, "train", **settings)
    second = threading.Thread(target=started, kwargs=dict(NODE_RANK=1), daemon=True)
    second.start()
    succeeded(started(NODE_RANK=0))
    second.join(timeout=60)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, value in found["environment"].items():
            monkeypatch.setenv(name, value)
        training = configuration(found["words"]).distributed_training
        infer_init_method(training)
        assert training.distributed_init_method == "env://"
        assert (training.distributed_world_size, training.distributed_rank) == (2, rank)
        assert (training.device_id, training.distributed_no_spawn) == (0, True)


def test_running_training_again(empty_work, tmp_path):
    """Checkpoints stay unless FORCE=1; a failure is told with its last line; no two at once."""
    stand_in(tmp_path / "fairseq-train", "echo no luck today; exit ${STATUS:-0}")
    train = partial(script, IWSLT, "train", WORK=empty_work, RUN="again", path=f"{tmp_path}:")
    checkpoint = empty_work / "again/checkpoints/checkpoint_last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    succeeded(train())
    failed = train(STATUS=3)
    assert failed.returncode == 3 and failed.stderr.count("\n") == 1
    assert "(exit status 3): no luck today" in failed.stderr
    with open(empty_work / "again/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = train(FORCE=1)
        assert refused.returncode == 2 and "another training is at work" in refused.stderr
    assert checkpoint.exists()
    succeeded(train(FORCE=1))
    assert not checkpoint.exists()


# --- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, words, settings, message",
    [
        ("prepare", ["--workers", "0"], {}, "--workers (0) must be a whole number above 0"),
        ("prepare", ["--bpe-merges", "x"], {}, "--bpe-merges (x) must be a whole number above 0"),
        ("prepare", ["--data", "/no/such"], {}, "--data (/no/such) is not there"),
        ("prepare", ["--sorted"], {}, "unrecognized arguments: --sorted"),
        ("train", [], dict(MODEL="rnn"), "MODEL (rnn) must be one of: "),
        ("train", [], dict(SIZE="7"), "SIZE of lite_transformer (7) must be one of: 160 240 320"),
        ("train", [], dict(WORK="/no/such"), "no data in WORK (/no/such): run prepare.sh first"),
        ("train", [], dict(GPUS="two"), "GPUS (two) must be a whole number from 0"),
        ("train", [], dict(GPUS="3"), "must divide 4096, the tokens of an update"),
        ("train", [], dict(MAX_TOKENS="3000"), "MAX_TOKENS (3000) must divide 4096"),
        ("train", [], dict(RUN="a/b"), "RUN (a/b) must be a plain name"),
        ("train", [], dict(FP16="1"), "FP16 (1) needs a GPU"),
        ("train", [], dict(NODES="2"), "MASTER () must be HOST:PORT of the first node"),
        ("train", [], dict(LAUNCHER="slurm"), "LAUNCHER=slurm needs a job of Slurm"),
        ("evaluate", [], dict(SUBSET="dev"), "SUBSET (dev) must be one of: test valid"),
        ("evaluate", [], dict(CHECKPOINT="/no.pt"), "CHECKPOINT (/no.pt) is not there"),
        ("evaluate", [], {}, "run train.sh first"),
    ],
)
def test_wrong_use(name, words, settings, message, empty_work):
    result = script(IWSLT, name, *words, **({"WORK": empty_work} | settings))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"{name}.sh: ") and message in result.stderr


# --- end to end -----------------------------------------------------------------------------------


def results(work: Path, run: str, name: str) -> dict:
    return json.loads((work / run / name / "result.json").read_text())


def test_iwslt_from_corpus_to_score(iwslt_data, tmp_path):
    work, run = tmp_path / "a folder", "lite_transformer_iwslt_de_en_160"
    prepare_it = partial(script, IWSLT, "prepare", DATA=iwslt_data, WORK=work, WORKERS=2)
    succeeded(prepare_it(BPE_MERGES=800))
    assert read(work / "data-bin/dict.de.txt") != read(work / "data-bin/dict.en.txt")
    again = prepare_it(BPE_MERGES=800)
    assert succeeded(again) == "" and len(again.stderr.splitlines()) == 1  # ready: nothing to do
    other = prepare_it(BPE_MERGES=200)
    assert other.returncode == 2 and "was prepared with other settings" in other.stderr

    succeeded(script(IWSLT, "train", "--max-epoch", 2, *ONE_LAYER, WORK=work))
    assert (work / run / "checkpoints/checkpoint2.pt").exists()

    evaluate = partial(script, IWSLT, "evaluate", WORK=work, AVERAGE=2)
    output = succeeded(evaluate("--max-len-b", 10))
    result = results(work, run, "test.average2")
    assert "BLEU4 = " in output and "|case:lc|" in output
    assert result["sentences"] == 10 and "|case:lc|" in result["signature"]
    folder = work / run / "test.average2"
    # pieces that are in no training sentence, of so few, are unknown to the dictionary
    compared = zip(read(folder / "references.tokens"), read(work / "words/test.en"), strict=True)
    known = [(ours, words) for ours, words in compared if "<<unk>>" not in ours]
    assert len(known) > 5 and all(ours == words for ours, words in known)
    weights = torch.load(work / run / "average2.pt")["model"]
    parts = [torch.load(work / run / f"checkpoints/checkpoint{n}.pt")["model"] for n in (1, 2)]
    name = "encoder.layers.0.fc1.weight"
    torch.testing.assert_close(weights[name], (parts[0][name] + parts[1][name]) / 2)

    other = evaluate("--max-len-b", 11)
    assert other.returncode == 2 and "made by another command" in other.stderr
    stand_in(tmp_path / "fairseq-generate", "exit 1")  # it is not asked again
    stand_in(tmp_path / "fairseq-score", "echo BLEU4 = 1.00")
    again = evaluate("--max-len-b", 10, path=f"{tmp_path}:")
    assert "BLEU4 = 1.00" in succeeded(again) and "|case:lc|" in again.stdout


def test_wmt_en_de_from_corpus_to_score(en_de_data, tmp_path):
    work, run = tmp_path / "work", "lite_transformer_wmt_en_de_200"
    succeeded(script(EN_DE, "prepare", DATA=en_de_data, WORK=work, WORKERS=1, BPE_MERGES=800))
    dictionaries = [read(work / f"data-bin/dict.{language}.txt") for language in ("en", "de")]
    assert dictionaries[0] == dictionaries[1]
    assert len(read(work / "pieces/valid.de")) == 10

    few = ["--max-update", 2, "--update-freq", 1, "--max-tokens", 1000]
    succeeded(script(EN_DE, "train", *few, *ONE_LAYER, WORK=work))
    state = torch.load(work / run / "checkpoints/checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["model"]["_name"] == run

    output = succeeded(script(EN_DE, "evaluate", "--max-len-b", 10, WORK=work))
    assert "compounds split" in output and "BLEU4 = " in output and "|case:mixed|" in output
    result = results(work, run, "test.best")
    assert result["sentences"] == 10 and result["compounds_split"]
    expected = [text_steps.split_compounds(line) for line in read(work / "words/test.de")]
    assert any("##AT##-##AT##" in line for line in expected)
    assert read(work / run / "test.best/references.tokens") == expected


# Without a GPU there is no device to choose by SLURM_LOCALID.
SRUN = """for rank in 1 0; do
  SLURM_STEP_NODELIST=here SLURM_PROCID=$rank SLURM_LOCALID=0 "$@" & tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done"""


def test_wmt_en_fr_from_corpus_to_score_with_slurm(en_fr_data, tmp_path):
    """Two tasks train together, started as Slurm would start them."""
    stand_in(tmp_path / "scontrol", "echo 127.0.0.1")
    stand_in(tmp_path / "srun", SRUN, "/usr/bin/env bash")
    work, run = tmp_path / "work", "lite_transformer_wmt_en_fr_200"
    succeeded(script(EN_FR, "prepare", DATA=en_fr_data, WORK=work, WORKERS=1, BPE_MERGES=800))
    # the 1333rd of 1350; some of the others are too unequal
    source = text_steps.normalise(lines("train", "en", 1332, 1)[0], "en")
    assert read(work / "words/valid.en") == [text_steps.tokenise(source, "en", True)]
    assert len(read(work / "words/train.en")) == 1349
    assert 1100 < len(read(work / "pieces/train.en")) < 1349

    job = dict(SLURM_NNODES=1, SLURM_NTASKS_PER_NODE=2, SLURM_JOB_ID=random.randint(1, 19999))
    words = ["--max-update", 2, "--update-freq", 1, "--max-tokens", 500]
    words += ["--distributed-backend", "gloo"]  # the others need GPUs
    output = script(
        EN_FR, "train", *words, *ONE_LAYER, LAUNCHER="slurm", WORK=work, path=f"{tmp_path}:", **job
    )
    succeeded(output)
    assert "initialized host" in (work / run / "train.log").read_text()
    state = torch.load(work / run / "checkpoints/checkpoint_last.pt")
    training = state["cfg"]["distributed_training"]
    assert training["distributed_world_size"] == 2 and training["distributed_no_spawn"]
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["model"]["_name"] == run
    assert state["cfg"]["lr_scheduler"]["lr_period_updates"] == 45000

    output = succeeded(script(EN_FR, "evaluate", "--max-len-b", 10, WORK=work))
    assert "BLEU4 = " in output and "version:" in output
    result = results(work, run, "test.best")
    assert result["sentences"] == 10 and not result["compounds_split"]


def test_translations_are_sorted_and_log_lines_left_out(tmp_path):
    generated = tmp_path / "generate.txt"
    generated.write_text(
        "The log begins with T\nH-hyphen\nT-1\tb a\nH-1\t-0.5\ty\nT-10\tk\nH-10\t-0.5\tz\n"
        "T-0\ta\nH-0\t-0.25\tx\n" + "".join(f"T-{n}\tt\nH-{n}\t-1\th\n" for n in range(2, 10))
    )
    assert score.numbered(generated, "T") == ["a", "b a", *"tttttttt", "k"]
    assert score.numbered(generated, "H") == ["x", "y", *"hhhhhhhh", "z"]
    generated.write_text("H-0\t-1\tx\nH-2\t-1\tx\n")
    with pytest.raises(corpus_files.Failure, match="every sentence"):
        score.numbered(generated, "H")


# --- published figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example, benchmark",
    [(IWSLT, "iwslt14_de_en"), (EN_DE, "wmt16_en_de"), (EN_FR, "wmt14_en_fr")],
)
def test_published_figures_are_in_the_readme(example, benchmark):
    rows = [
        [cell.strip(" *`") for cell in line.split("|")]
        for line in (EXAMPLES / example / "README.md").read_text().splitlines()
        if line.startswith("|")
    ]
    figures = [entry for entry in PUBLISHED["quality"] if entry["benchmark"] == benchmark]
    assert len(figures) > 6
    for entry in figures:
        name = entry["model"].replace("_", " ")
        matching = [
            row
            for row in rows
            if row[1].replace("_", " ").lower().startswith(name) and row[3] == entry["mult_adds"]
        ]
        assert [row[5] for row in matching] == [str(entry["score"])], entry
