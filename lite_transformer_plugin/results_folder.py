"""A folder of results that a stopped command goes on with and another command does not touch.

`settings.json` says which command the folder belongs to. What takes long is remembered in
`progress-*.jsonl`, one file a process, as soon as it is known.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import report

SETTINGS = "settings.json"


class ResultsFolder:
    """Remembers what a command has found so far; opened by every process that shares the work."""

    def __init__(self, folder: str | Path, rank: int = 0):
        self.folder = Path(folder)
        self._own = self.folder / f"progress-{rank}.jsonl"
        self._known: dict[tuple[str, str], Any] = {}
        for path in sorted(self.folder.glob("progress-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):  # else the process was stopped while it wrote
                    kind, key, value = json.loads(line)
                    self._known[kind, key] = value
        self._mend()

    def _mend(self) -> None:
        """Cut half a line off, so that the next one does not begin in it."""
        if self._own.exists():
            text = self._own.read_bytes()
            if not text.endswith(b"\n"):
                self._own.write_bytes(text[: text.rfind(b"\n") + 1])

    def known(self, kind: str) -> dict[str, Any]:
        """Everything of one kind that this command has found, in this run or before."""
        return {key: value for (found, key), value in self._known.items() if found == kind}

    def remember(self, kind: str, key: str, value: Any) -> None:
        """Keep a finding, a value that JSON knows."""
        self._known[kind, key] = value
        with open(self._own, "a", encoding="utf-8") as file:
            file.write(json.dumps([kind, key, value]) + "\n")

    def path(self, name: str) -> Path:
        return self.folder / name


def claim(
    folder: str | Path,
    settings: Mapping[str, Any],
    force: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Make the folder, or see that it belongs to this command; by one process, before all others.

    Args:
        settings: what decides the results, as JSON knows it.
        force: take the folder from another command; what that one left is deleted.
        defaults: what settings are when nobody gives them. A folder that knows nothing of one,
            since it was made before there was such a flag, counts as made with its default.

    Raises:
        ValueError: if it belongs to a command with other settings, naming one that differs.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--results-dir {folder} is a file: name a folder")
    path = folder / SETTINGS
    wanted = json.loads(json.dumps(settings))
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        found = {**json.loads(json.dumps(defaults or {})), **found}
        differing = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
        if not differing:
            return
        if not force:
            name = differing[0]
            raise ValueError(
                f"{folder} holds results of another command ({name}: {found.get(name)!r}, now "
                f"{wanted.get(name)!r}): choose another folder, or --force to replace them"
            )
        for old in folder.glob("progress-*.jsonl"):
            old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    report.write_json(path, wanted, force=True)
