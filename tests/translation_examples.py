"""The translation examples, for their tests: modules, scripts, small corpora, command lines.

The corpora cannot be had here: slices of the committed one take their places under their names.
"""

import gzip
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

EXAMPLES = Path(__file__).parent.parent / "examples"
SHARED = EXAMPLES / "translation"
IWSLT, EN_DE, EN_FR = "iwslt14.de-en", "wmt16.en-de", "wmt14.en-fr"
CNN_DM, SUMMARIES = "cnn-dailymail", "debian-summaries"
ARCHIVE = EXAMPLES / "quickstart/data/lohelp-de.tar.xz"
ONE_LAYER = "--encoder-layers 1 --decoder-layers 1".split()
ONE_LAYER += "--encoder-kernel-size-list 3 --decoder-kernel-size-list 3".split()
TRAIN_TAGS = """<url>http://example.org/talk</url>
<keywords>talks, sea</keywords>
<talkid>12</talkid>
<title>Am Meer</title>
<description>Ein Vortrag.</description>
 Guten Morgen.
 Das Meer ist <tief>. """


sys.path.insert(0, str(SHARED))  # they are no package, and import each other
import corpus_files  # noqa: E402, F401
import corpus_steps  # noqa: E402
import text_steps  # noqa: E402, F401

# by its path: the quickstart has a prepare.py, too
spec = importlib.util.spec_from_file_location("translation_prepare", SHARED / "prepare.py")
prepare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepare)
sys.path.remove(str(SHARED))

# --- scripts --------------------------------------------------------------------------------------


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


def results(work: Path, run: str, name: str) -> dict:
    """What evaluate.sh left."""
    return json.loads((work / run / name / "result.json").read_text())


def configuration(command: list[str]):
    """What today's fairseq makes of a command line of fairseq-train."""
    assert Path(command[0]).name == "fairseq-train"
    args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
    return convert_namespace_to_omegaconf(args)


# --- corpora --------------------------------------------------------------------------------------


def corpus(example: str) -> dict:
    return tomllib.loads((EXAMPLES / example / "corpus.toml").read_text())


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


def write_iwslt(folder: Path) -> Path:
    """`de-en.tgz`: a talk of 240 sentences, five test files of two."""
    folder.mkdir()
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


def write_en_de(folder: Path) -> Path:
    """Files that have been unpacked, in two folders."""
    (folder / "dev").mkdir(parents=True)
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


def write_en_fr(folder: Path) -> Path:
    """German plays French. One archive, one compressed file in it, the rest unpacked."""
    folder.mkdir()
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


def write_cnn_dm(folder: Path) -> Path:
    """`cnndm.tar.gz`: three German sentences play an article, an English one its summary."""
    folder.mkdir()
    with tarfile.open(folder / "cnndm.tar.gz", "w:gz") as archive:
        for name, split, count in (
            ("train", "train", 240),
            ("val", "valid", 8),
            ("test", "test", 8),
        ):
            text = lines(split, "de", 0, 3 * count)
            articles = [" ".join(text[3 * i : 3 * i + 3]) for i in range(count)]
            summaries = [f"<t> {line} </t>" for line in lines(split, "en", 0, count)]
            add(archive, f"cnn/{name}.txt.src", plain(articles).encode())
            add(archive, f"cnn/{name}.txt.tgt.tagged", plain(summaries).encode())
    return folder


def read(path: Path) -> list[str]:
    return path.read_text().rstrip("\n").split("\n")


def prepared(example: str, work: Path, data: Path, *words) -> Path:
    """All that prepare.sh does but fairseq-preprocess, in this process."""
    options = ["--data", data, "--work", work, "--workers", 1, "--bpe-merges", 100, *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_steps.Preparation, "binarise", lambda self: None)
        prepare.prepare([str(word) for word in (EXAMPLES / example, *options)])
    return work
