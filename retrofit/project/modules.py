"""The files of a project: which local modules the entry script imports, directly and indirectly."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from .source import Source, SourceError, read_source

MOST_FILES = 500
MARKS = (".git", "setup.py", "pyproject.toml", "setup.cfg")  # of the top of a repository


class Modules:
    """The entry script and the local modules that it can reach by import, by dotted name.

    A name is looked for beside the entry script first, as Python does, then in `root`, the folder that scripts in
    subfolders are started from, then in the folders above up to the top of the repository. What is found nowhere is
    somebody else's package. A module that cannot be read is kept in `unreadable`, with the reason.
    """

    def __init__(self, entry: Path, root: Path) -> None:
        self.root = root
        self.folders = list(dict.fromkeys([entry.parent, root, *_folders_above(entry)]))
        self.sources: dict[Path, Source] = {}
        self.unreadable: dict[Path, str] = {}
        self._known: dict[tuple[str, Path | None], Path | None] = {}
        self.entry = read_source(entry, self._name(entry))
        self.sources[entry] = self.entry
        self._follow(self.entry)

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def _follow(self, source: Source) -> None:
        waiting = [source]
        while waiting:
            current = waiting.pop()
            for path in self._imports_of(current):
                if path in self.sources or path in self.unreadable or len(self.sources) >= MOST_FILES:
                    continue
                try:
                    self.sources[path] = read_source(path, self._name(path))
                except SourceError as error:
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
