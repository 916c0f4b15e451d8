"""The journal of a conversion in `.retrofit`: what it has changed, and the original files."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from .confined import NEW_FILE, Confined, State, WriteError, digest

FOLDER = ".retrofit"
ORIGINALS = f"{FOLDER}/originals"
IGNORE = f"{FOLDER}/.gitignore"  # the folder is for this clone alone
WRITING, COMPLETE, UNDOING = "writing", "complete", "undoing"
LAUNCH = ".vscode/launch.json"
_NUMBER = re.compile(r"(\d{4,9})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
OLD_FORMAT = "undo.json"


@dataclass
class Entry:
    """A file that a conversion changed, made (`before` is None), or needs as it is (`before` is `after`)."""

    path: str
    before: State | None
    after: State

    @property
    def is_changed(self) -> bool:
        return self.before is None or self.before.sha256 != self.after.sha256


@dataclass
class Journal:
    """One conversion. `folders` are those that it made; `module` and `search_path` belong to the script's start."""

    number: int
    script: str
    entries: list[Entry]
    folders: list[str] = field(default_factory=list)
    state: str = WRITING
    module: str | None = None
    search_path: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.number:04d}.json"

    def entry(self, path: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.path == path), None)


def read_journals(inside: Confined) -> list[Journal]:
    """Return the journals of a folder, the oldest first.

    Raises WriteError where one of them is not what `save` writes: a folder may come with any file in it.
    """
    journals = []
    names = inside.names(FOLDER)
    for name in names:
        found = _NUMBER.fullmatch(name)
        content = inside.read(f"{FOLDER}/{name}") if found else None
        if found and content:
            try:
                journals.append(_parse(int(found[1]), json.loads(content[0])))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                reason = f"{inside.root / FOLDER / name} is not a journal of a conversion ({error})"
                raise WriteError(f"{reason}; restore the files by your version control") from error
    if not journals and OLD_FORMAT in names:
        place = inside.root / FOLDER
        raise WriteError(f"{place} was written by an older retrofit; the originals are in it: restore them by hand")
    return sorted(journals, key=lambda journal: journal.number)


def save(inside: Confined, journal: Journal) -> None:
    """Write a journal in one step, durably."""
    content = {key: value for key, value in asdict(journal).items() if key != "number"}
    temporary = f"{FOLDER}/new-journal"
    inside.remove(temporary)
    inside.create(temporary, json.dumps(content, indent=1).encode(), NEW_FILE)
    inside.rename(temporary, journal.path)
    inside.sync(FOLDER)


def keep_original(inside: Confined, data: bytes) -> None:
    """Keep the content of a file that is about to be changed, under its hash."""
    name = f"{ORIGINALS}/{digest(data)}"
    if inside.state(name) != State(digest(data), 0o600):
        inside.remove(name)
        inside.create(name, data, 0o600)


def original(inside: Confined, sha256: str) -> bytes:
    """Return what `keep_original` kept. Raises WriteError when it is not there or was changed."""
    found = inside.read(f"{ORIGINALS}/{sha256}")
    if found is None or digest(found[0]) != sha256:
        place = inside.root / ORIGINALS / sha256
        raise WriteError(f"{place} is missing or was changed; restore the files by your version control")
    return found[0]


def tidy(inside: Confined, journals: list[Journal]) -> None:
    """Remove from `.retrofit` what no journal needs, and the folder itself when nothing is left, as far as possible."""
    needed = {entry.before.sha256 for journal in journals for entry in journal.entries if entry.before}
    originals = [name for name in inside.names(ORIGINALS) if _SHA256.fullmatch(name) and name not in needed]
    temporary = [name for name in inside.names(FOLDER) if name.startswith("new-")]
    with suppress(OSError):  # the next command does it
        for name in originals:
            inside.remove(f"{ORIGINALS}/{name}")
        for name in temporary:
            inside.remove(f"{FOLDER}/{name}")
        inside.remove_folder(ORIGINALS)
        if inside.names(FOLDER) == [IGNORE.rpartition("/")[2]]:
            inside.remove(IGNORE)
        inside.remove_folder(FOLDER)


def check_path(path: str) -> str:
    """Return a path if a conversion may write there; raise ValueError for any other."""
    parts = path.split("/")
    is_odd = any(part in ("", ".", "..") or "\0" in part for part in parts)
    if is_odd or (any(part.startswith(".") for part in parts) and path != LAUNCH):
        raise ValueError(f"{path!r} is not a path that a conversion writes: no part of it may begin with a dot")
    return path


def _parse(number: int, content: dict[str, Any]) -> Journal:
    entries = [
        Entry(check_path(e["path"]), _state(e["before"]) if e["before"] is not None else None, _state(e["after"]))
        for e in content["entries"]
    ]
    if content["state"] not in (WRITING, COMPLETE, UNDOING) or not isinstance(content["script"], str):
        raise ValueError("unknown state")
    if len({entry.path for entry in entries}) != len(entries):
        raise ValueError("a file twice")
    for folder in content["folders"]:
        if folder != ".vscode":
            check_path(folder)
    module, search_path = content.get("module"), list(content.get("search_path", []))
    if not isinstance(module, (str, type(None))) or not all(isinstance(folder, str) for folder in search_path):
        raise ValueError("no module")
    folders = list(content["folders"])
    return Journal(number, content["script"], entries, folders, content["state"], module, search_path)


def _state(content: dict[str, Any]) -> State:
    if not _SHA256.fullmatch(content["sha256"]) or not isinstance(content["mode"], int):
        raise ValueError("no hash")
    return State(content["sha256"], content["mode"] & 0o777)
