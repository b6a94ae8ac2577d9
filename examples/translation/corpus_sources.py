"""Where the text of a corpus comes from: the user's own files, else downloaded archives.

What is wanted stands in the example's corpus.toml; sentence pairs come out.
"""

import http.client
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import text_steps as text
from corpus_files import Failure, download, read_lines, stage, unpack, verified

SPLITS = ("train", "valid", "test")


class Sources:
    """Finds the files of corpus.toml: the user's own, else downloaded ones."""

    def __init__(self, corpus: dict, data: Path | None, work: Path):
        self.corpus, self.work = corpus, work
        self.languages = (corpus["source"], corpus["target"])
        self.original = work / "original"
        self.data = data

    def origin(self) -> str:
        """What the text is: the published one is the same wherever its files lie."""
        return f"train.* in {self.data.resolve()}" if self.plain("train") else "published"

    def open(self) -> None:
        """Unpack the archive that the user has named."""
        if self.data is not None and self.data.is_file():
            unpack(self.data, self._all_names(), self.original)
            self.data = None

    def plain(self, split: str) -> list[Path] | None:
        """The user's own train, valid or test: a pair of files with a sentence a line."""
        if self.data is None:
            return None
        found = [self.data / f"{split}.{language}" for language in self.languages]
        return found if all(path.is_file() for path in found) else None

    def pieces(self, split: str) -> list[Path] | None:
        """Files that went through all steps but the last, if they are at hand."""
        pattern = self.corpus.get("preprocessed", {}).get(split)
        return pattern and self._have(self._names({"file": pattern}))

    def files(self, split: str) -> Iterator[list[Path]]:
        """The pairs of files that corpus.toml names; what is missing is downloaded."""
        for entry in self.corpus.get(split, []):
            names = self._names(entry)
            if self._have(names) is None:
                self._fetch(entry["archive"])
            found = self._have(names)
            if found is None:
                raise Failure(f"{entry['archive']} does not hold {' and '.join(names)}")
            yield found

    def _names(self, entry: dict) -> list[str]:
        sides = zip(self.languages, self.corpus.get("sides", ("src", "ref")), strict=True)
        return [entry["file"].format(language=language, side=side) for language, side in sides]

    def _all_names(self) -> set[str]:
        entries = [entry for split in SPLITS for entry in self.corpus.get(split, [])]
        entries += [{"file": name} for name in self.corpus.get("preprocessed", {}).values()]
        return {name for entry in entries for name in self._names(entry)}

    def _have(self, names: list[str]) -> list[Path] | None:
        """Files of these names, in the user's folder at any depth or already unpacked."""
        found = []
        for name in names:
            places = itertools.chain(
                self.data.rglob(name) if self.data else (), self.original.glob(name)
            )
            found.append(next((path for path in places if path.is_file()), None))
        return None if None in found else found

    def _fetch(self, name: str) -> None:
        """Unpack an archive, the user's or the downloaded one."""
        archive = next(self.data.rglob(name), None) if self.data else None
        if archive is None:
            archive = self._downloaded(name)
        stage(f"unpacking {name}")
        unpack(archive, self._all_names(), self.original)

    def _downloaded(self, name: str) -> Path:
        known = self.corpus["archives"][name]
        archive = self.work / "downloads" / name
        if not archive.exists():
            stage(f"downloading {known['url']}")
            try:
                download(known["url"], archive)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Failure(
                    f"cannot download {known['url']} ({error}): get {name} elsewhere (README.md "
                    "says where), and name its folder with --data FOLDER"
                ) from error
        verified(archive, known.get("checksum"), archive.with_name(name + ".checksum"))
        return archive


def sentences(path: Path) -> Iterable[str]:
    if path.suffix in (".xml", ".sgm"):
        return text.segments("\n".join(read_lines(path)))
    if path.name.startswith("train.tags."):
        return text.talk_sentences(read_lines(path))
    if path.name.endswith(".tagged"):
        return map(text.untagged, read_lines(path))
    return read_lines(path)


def pairs(paths: list[Path]) -> Iterator[text.Pair]:
    """Sentence pairs of two files, which must have equally many."""
    for source, target in itertools.zip_longest(*map(sentences, paths)):
        if source is None or target is None:
            raise Failure(f"{paths[0]} and {paths[1]} differ in their number of sentences")
        yield source, target
