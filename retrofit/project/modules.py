"""The files of a project: which local modules the entry script imports, directly and indirectly."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from retrofit.analysis.named_imports import ANYTHING, modules_named, named_imports

from .source import Source, SourceError, read_source

MOST_FILES = 500
MARKS = (".git", "setup.py", "pyproject.toml", "setup.cfg")  # of the top of a repository


class Modules:
    """The entry script and the local modules that it can reach by import, by dotted name.

    A name is looked for beside the entry script first, as Python does, then in `root`, the folder that scripts in
    subfolders are started from, then in the folders above up to the top of the repository. What is found nowhere is
    somebody else's package. A module that cannot be read is kept in `unreadable`, with the reason. `overlay` has the
    content of files that are to be written: it counts instead of what is there.
    """

    def __init__(self, entry: Path, root: Path, overlay: Mapping[Path, bytes] | None = None) -> None:
        self.root = root
        self._overlay = overlay or {}
        self.folders = list(dict.fromkeys([entry.parent, root, *_folders_above(entry)]))
        self.sources: dict[Path, Source] = {}
        self.unreadable: dict[Path, str] = {}
        self.named: dict[ast.Call, list[Path]] = {}  # imports by a name that is put together: what they can mean
        self.not_read: list[str] = []  # where such a name can be that of any module
        self._known: dict[tuple[str, Path | None], Path | None] = {}
        self.entry = self._read(entry)
        self.sources[entry] = self.entry
        self._follow(self.entry)

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def _read(self, path: Path) -> Source:
        return read_source(path, self._name(path), self._overlay.get(path))

    def _follow(self, source: Source) -> None:
        waiting = [source]
        while waiting:
            current = waiting.pop()
            for path in self._imports_of(current):
                if path in self.sources or path in self.unreadable or len(self.sources) >= MOST_FILES:
                    continue
                try:
                    self.sources[path] = self._read(path)
                except SourceError as error:
                    if any(path in paths for paths in self.named.values()):
                        unread = f"{error} (it may be imported by name)"
                        self.not_read += [unread] if unread not in self.not_read else []
                    else:
                        self.unreadable[path] = str(error)
                else:
                    waiting.append(self.sources[path])

    def _imports_of(self, source: Source) -> Iterator[Path]:
        for node in source.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._with_packages(alias.name, 0, source)
            elif isinstance(node, ast.ImportFrom):
                yield from self._with_packages(node.module or "", node.level, source)
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}" if node.module else alias.name
                    found = self.find(inner, node.level, source)
                    if found:
                        yield found

        for named in named_imports(source.nodes):
            found_by_name = list(dict.fromkeys(path for name in named.names for path in self._of_name(name, source)))
            self.named[named.call] = found_by_name
            if named.is_computed and not found_by_name:
                text = " ".join(source.segment(named.call).split())
                self.not_read.append(f"{source.place(named.call)}: {text} can be any module")
            yield from found_by_name

    def _of_name(self, name: str, source: Source) -> Iterator[Path]:
        if ANYTHING in name:
            found = modules_named(name, self.folders, source.path)
            yield from (path for path in found if path != self.entry.path and "retrofit" not in path.parts)
        else:
            level = len(name) - len(name.lstrip("."))
            yield from self._with_packages(name.lstrip("."), level, source)

    def _with_packages(self, dotted: str, level: int, source: Source) -> Iterator[Path]:
        parts = dotted.split(".") if dotted else [""]
        for number in range(1, len(parts) + 1):
            found = self.find(".".join(parts[:number]), level, source)
            if found:
                yield found

    def find(self, dotted: str, level: int, importer: Source) -> Path | None:
        """Return the file of a module as seen from `importer`, None when it is not part of the project."""
        folder = None
        if level:
            folder = importer.path.parent
            for _ in range(level - 1):
                folder = folder.parent
        if dotted.partition(".")[0] == "retrofit" and not level:
            return None  # the runtime's copy beside a converted script is no part of the project
        key = (dotted, folder)
        if key not in self._known:
            folders = [folder] if folder else self.folders
            self._known[key] = next((path for base in folders for path in _candidates(base, dotted)), None)
        return self._known[key]


def _folders_above(entry: Path) -> list[Path]:
    """Return the folders above a script up to that of its repository, where packages of its own can lie."""
    found = []
    for folder in list(entry.parents)[1:5]:
        found.append(folder)
        if any((folder / mark).exists() for mark in MARKS):
            return found
    return []


def _candidates(base: Path, dotted: str) -> Iterator[Path]:
    place = base.joinpath(*dotted.split(".")) if dotted else base
    for path in (place / "__init__.py", place.with_name(place.name + ".py") if dotted else None):
        if path is not None and path.is_file():
            yield path
