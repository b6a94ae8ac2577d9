"""Files that appear whole or not at all, archives, downloads that resume."""

import gzip
import hashlib
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TextIO

BLOCK = 1 << 20  # bytes
SECONDS_BETWEEN_LINES = 5
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
START = time.monotonic()
MISSING = (
    "{} is missing: pip install 'lite-transformer-plugin[translation]', "
    "or pip install sacremoses subword-nmt"
)


class WrongUse(Exception):
    """The user asked for something that cannot be: exit status 2."""


class Failure(Exception):
    """The world did not play along: exit status 1."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stage(what: str) -> None:
    """Say what begins, and when."""
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    say(f"[{minutes}:{seconds:02d}] {what}")


# --- text files -----------------------------------------------------------------------------------


@contextmanager
def whole(paths: Iterable[Path]) -> Iterator[list[TextIO]]:
    """Open files under temporary names, and rename them once all are complete."""
    with ExitStack() as stack:
        files = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(path.name + ".tmp")
            files.append(stack.enter_context(open(temporary, "w", encoding="utf-8", newline="\n")))
        yield files
    for file in files:
        temporary = Path(file.name)
        temporary.replace(temporary.with_suffix(""))


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text, plain or .gz, cut at line feeds only, as fairseq and subword-nmt do."""
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise Failure(f"{path} is damaged: {error}") from error


# --- archives -------------------------------------------------------------------------------------


def checksum(path: Path, method: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, method).hexdigest()


def members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """The files of an archive: name without folders, and what opens it."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield Path(info.filename).name, partial(packed.open, info)
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isfile():
                yield Path(member.name).name, partial(packed.extractfile, member)


def unpack(archive: Path, wanted: set[str], folder: Path) -> None:
    """Take the files of these names, whatever folder they are in, out of a .tar, .tgz or .zip.

    The archive's own paths are not used, so that nothing lands outside ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = {name for name in wanted if not (folder / name).exists()}
    try:
        with closing(members(archive)) as files:
            for name, member in files:
                if name in left:
                    temporary = folder / (name + ".tmp")
                    with open(temporary, "wb") as file, member() as content:
                        shutil.copyfileobj(content, file, BLOCK)
                    temporary.replace(folder / name)
                    left.remove(name)
                if not left:
                    return
    except (*DAMAGED, tarfile.TarError, zipfile.BadZipFile) as error:
        raise Failure(f"{archive} is damaged ({error}): delete it, and get it again") from error


# --- downloads ------------------------------------------------------------------------------------


def download(url: str, target: Path) -> None:
    """Get a file, going on where an earlier attempt broke off.

    Raises:
        OSError, http.client.HTTPException: if it cannot be had, or not all of it arrived.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    try:
        _get(url, part, have)
    except urllib.error.HTTPError as error:
        if not have or error.code != 416:  # 416: there is nothing after what we have
            raise
        if error.headers.get("Content-Range") != f"bytes */{have}":
            part.unlink()  # it is no part of that file
            raise
    part.replace(target)


def _get(url: str, part: Path, have: int) -> None:
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        resumed = answer.status == 206  # else the server sends all of it
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if resumed else "wb") as file:
            for arrived in _copy(answer, file):
                _report(part.stem, have + arrived, total)
    size = part.stat().st_size
    if total is not None and size < total:
        raise OSError(f"it broke off after {size} of {total} bytes; the same command goes on")


def _copy(source, target) -> Iterator[int]:
    """Copy in blocks; after some seconds, and at the end, how many bytes so far."""
    arrived, shown = 0, time.monotonic()
    while block := source.read(BLOCK):
        target.write(block)
        arrived += len(block)
        if time.monotonic() - shown >= SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            yield arrived
    yield arrived


def _report(name: str, size: int, total: int | None) -> None:
    of = f" of {total / 1e6:.0f}" if total else ""
    say(f"  {name}: {size / 1e6:.0f}{of} MB")


def verified(archive: Path, expected: str | None, record: Path) -> None:
    """Compare with the known checksum ``METHOD:DIGITS``, else with the one of the first download.

    Raises:
        Failure: if they differ.
    """
    if expected is None and record.exists():
        expected = record.read_text().strip()
    method, _, digits = (expected or "sha256:").partition(":")
    found = checksum(archive, method)
    if digits and found != digits:
        raise Failure(
            f"{archive} has {method} {found}, expected {digits}: delete it to get it again, "
            f"or put a copy you trust into a folder and name that with --data"
        )
    if not digits:
        record.write_text(f"{method}:{found}\n")
        say(f"  {archive.name}: no checksum of it is known; {method} {found} noted for later")
