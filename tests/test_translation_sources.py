"""Where the text of the translation examples comes from: the user's own files, or downloads."""

import gzip
import random
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from translation_examples import (
    EN_DE,
    EXAMPLES,
    IWSLT,
    SHARED,
    add,
    corpus,
    corpus_files,
    lines,
    plain,
    prepared,
    read,
    write_en_de,
)


def test_own_sentences_take_the_place_of_the_corpus(tmp_path):
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


def test_the_authors_preprocessed_archive(tmp_path):
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


def test_sides_of_different_length_are_refused(tmp_path):
    data = write_en_de(tmp_path / "data")
    with open(data / "commoncrawl.de-en.de", "a") as file:
        file.write("Eine Zeile zu viel.\n")
    with pytest.raises(corpus_files.Failure, match="commoncrawl.*differ in their number"):
        prepared(EN_DE, tmp_path / "work", data)
    assert not (tmp_path / "work/words/train.de").exists()


def test_a_damaged_archive(tmp_path):
    (tmp_path / "de-en.tgz").write_bytes(gzip.compress(b"no archive")[:-3])
    with pytest.raises(corpus_files.Failure, match="de-en.tgz is damaged"):
        prepared(IWSLT, tmp_path / "work", tmp_path)


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
