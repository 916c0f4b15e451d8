"""The files of a project: which local modules the entry script imports, directly and indirectly."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..nodes import walk
from .named_imports import ANYTHING, in_same_folders, modules_named, named_imports
from .repository import common_folder, folders_above, may_hold, source_folders
from .runtime_names import FILE_MODULE, RUNTIME, is_module, is_runtime_file
from .search_path import Added, added_folders
from .source import Source, SourceError, read_source
from .standard_library import standard_modules

MOST_FILES = 500
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
OWN = ("retrofit", FILE_MODULE, "__main__")  # names that need not be found


@dataclass(frozen=True)
class Import:
    """A statement that imports the module `dotted`, `level` packages up; an optional one may fail."""

    node: ast.Import | ast.ImportFrom
    dotted: str
    level: int
    source: Source
    names: tuple[str, ...] = ()  # from dotted import names

    @property
    def is_optional(self) -> bool:
        inner: ast.AST = self.node
        for outer in self.source.ancestors(self.node):
            if isinstance(outer, ast.Try) and inner in outer.body and any(map(_catches, outer.handlers)):
                return True
            if isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.dump(outer.test):
                return True
            inner = outer
        return False


class Modules:
    """The entry script and the local modules that it can reach by import, by dotted name.

    `root` is the folder that the script is started from: as a file, then names are looked for next to the script
    first, or `as_module`, then in `root` first, as Python does. Next come `path`, the folders of PYTHONPATH, and what
    the program adds to its search path itself; then `root` and the folders above the script up to the top of the
    repository, and their `src`, from where an installation may find them. What is found nowhere is an external
    package, or `unresolved`. A module that cannot be read is kept in `unreadable`, with the reason. `overlay` has the
    content of files that are to be written: it counts instead of what is there. `known` files are not read again.
    """

    def __init__(
        self,
        entry: Path,
        root: Path,
        overlay: Mapping[Path, bytes] | None = None,
        *,
        as_module: bool = False,
        path: Sequence[Path] = (),
        known: Mapping[Path, Source] | None = None,
    ) -> None:
        self.root = root
        self.as_module = as_module
        self.path = tuple(path)
        self._overlay = overlay or {}
        self._read_before = known or {}
        self._entry_folder = entry.parent
        above = [root, *([] if as_module else [entry.parent]), *folders_above(entry.parent)]
        self._above = [*above, *source_folders(dict.fromkeys(above))]
        self.added: dict[Path, Added] = {}  # folders that the program puts on its search path
        self.outside: dict[Path, None] = {}  # and those that are not of the project
        self.folders: list[Path] = []  # in which modules are looked for, in this order
        self.sources: dict[Path, Source] = {}
        self.unreadable: dict[Path, str] = {}
        self.bases: dict[Path, None] = {}  # the folders in which absolute imports were found
        self.unresolved: list[Import] = []  # found nowhere, and not in the standard library
        self.relative: list[Import] = []
        self.named: dict[ast.Call, list[Path]] = {}  # imports by a name that is put together: what they can mean
        self.namespaces: dict[str, Path] = {}  # modules, by full name, in folders without an __init__.py
        self.not_read: list[str] = []  # where such a name can be that of any module
        self._known: dict[tuple[str, Path | None], tuple[Path, Path] | None] = {}
        self.entry = self._read(entry)
        self.sources[entry] = self.entry
        self._follow_all()

    def with_texts(self, texts: Mapping[Path, bytes], parsed: Mapping[Path, Source]) -> Modules:
        """Return the modules as they are when some files hold other texts, in addition to those that do already."""
        known = {**{path: source for path, source in self.sources.items() if path not in texts}, **parsed}
        texts = {**self._overlay, **texts}
        return Modules(self.entry.path, self.root, texts, as_module=self.as_module, path=self.path, known=known)

    def _search_path(self) -> list[Path]:
        """Return the folders that are on the search path whatever is installed."""
        added = self.added.values()
        first = [one.folder for one in reversed(added) if one.is_first]
        last = [one.folder for one in added if not one.is_first]
        return [*first, self.root if self.as_module else self._entry_folder, *self.path, *last]

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def _read(self, path: Path) -> Source:
        return self._read_before.get(path) or read_source(path, self._name(path), self._overlay.get(path))

    def _follow_all(self) -> None:
        """Read what is imported, again from the start where a file has added a folder to the search path."""
        known = -1
        while known != len(self.added):
            known = len(self.added)
            self.folders = list(dict.fromkeys([*self._search_path(), *self._above]))
            for store in (
                self._known, self.bases, self.unresolved, self.relative, self.named, self.not_read, self.namespaces,
            ):  # fmt: skip
                store.clear()  # type: ignore[attr-defined]
            waiting = list(self.sources.values())
            while waiting:
                waiting += self._follow(waiting.pop())

    def _follow(self, source: Source) -> Iterator[Source]:
        """Yield the modules that a file imports and that have not been read."""
        self._add_folders(source)
        for path in self._imports_of(source):
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
                yield self.sources[path]

    def _add_folders(self, source: Source) -> None:
        if "sys" not in source.text and "addsitedir" not in source.text:
            return
        for added in added_folders(source.nodes, source.path, self._entry_folder):
            shared = common_folder(added.folder, self._entry_folder)
            if not added.folder.is_dir():
                continue
            if may_hold(shared, self._entry_folder):
                self.added.setdefault(added.folder, added)
            else:
                self.outside.setdefault(added.folder)

    def _imports_of(self, source: Source) -> Iterator[Path]:
        for node in source.nodes.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._of_statement(Import(node, alias.name, 0, source))
            else:
                names = tuple(alias.name for alias in node.names)
                yield from self._of_statement(Import(node, node.module or "", node.level, source, names))
        for named in named_imports(source.nodes):
            found_by_name = list(dict.fromkeys(path for name in named.names for path in self._of_name(name, source)))
            others = in_same_folders(found_by_name, self._entry_folder) if ANYTHING in named.names else []
            found_by_name += [path for path in others if not is_runtime_file(path)]
            self.named[named.call] = found_by_name
            if named.is_computed and (not found_by_name or (ANYTHING in named.names and not others)):
                text = " ".join(source.segment(named.call).split())
                self.not_read.append(f"{source.place(named.call)}: {text} can be any module")
            yield from found_by_name

    def _of_statement(self, statement: Import) -> Iterator[Path]:
        dotted, level, source = statement.dotted, statement.level, statement.source
        yield from self._with_packages(dotted, level, source)
        for name in statement.names:
            found = self.find(f"{dotted}.{name}" if dotted else name, level, source)
            if found:
                yield found
        if level:
            self.relative.append(statement)
        if not self._resolves(statement):
            self.unresolved.append(statement)

    def _resolves(self, statement: Import) -> bool:
        """Return whether a statement finds something, were it only a folder or a compiled module."""
        dotted, level, source = statement.dotted, statement.level, statement.source
        top = dotted.partition(".")[0]
        if level == 0 and dotted.startswith(f"{RUNTIME}."):
            return is_module(dotted[len(RUNTIME) + 1 :])
        if (level == 0 and (top in standard_modules() or top in OWN)) or self.find(dotted, level, source):
            return True
        folders = [_package(source, level)] if level else self.folders
        if not dotted:  # from . import names
            return all(self.find(name, level, source) or _is_module(folders[0] / name) for name in statement.names)
        return any(_is_module(folder.joinpath(*dotted.split("."))) for folder in folders)

    def _of_name(self, name: str, source: Source) -> Iterator[Path]:
        if ANYTHING in name:
            found = modules_named(name, self.folders, source.path)
            yield from (path for path in found if path != self.entry.path and not is_runtime_file(path))
        else:
            level = len(name) - len(name.lstrip("."))
            yield from self._with_packages(name.lstrip("."), level, source)

    def _with_packages(self, dotted: str, level: int, source: Source) -> Iterator[Path]:
        parts = dotted.split(".") if dotted else [""]
        package: Path | None = None
        for number in range(1, len(parts) + 1):
            name, above = ".".join(parts[:number]), package
            package = self.find(name, level, source)
            if package:
                if number > 1 and above is None and not level:
                    self.namespaces[name] = package
                yield package

    def find(self, dotted: str, level: int, importer: Source) -> Path | None:
        """Return the file of a module as seen from `importer`, None when it is not part of the project."""
        folder = _package(importer, level) if level else None
        top = dotted.partition(".")[0]
        if top == "retrofit" and not level:
            return None  # the library
        key = (dotted, folder)
        if key not in self._known:
            folders = [folder] if folder else self.folders
            if not level and top in standard_modules():  # the folders of an installation come after it
                folders = self._search_path()
            found = (
                (path, base) for base in folders for path in _candidates(base, dotted) if not is_runtime_file(path)
            )
            self._known[key] = next(found, None)
        result = self._known[key]
        if result and not level:
            self.bases[result[1]] = None
        return result[0] if result else None


def _package(importer: Source, level: int) -> Path:
    """Return the folder in which a relative import of `importer` looks."""
    folder = importer.path.parent
    for _ in range(level - 1):
        folder = folder.parent
    return folder


def _is_module(place: Path) -> bool:
    """Return whether there is a folder, or a compiled module."""
    return place.is_dir() or any(place.parent.glob(f"{place.name}.*.so"))


def _catches(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches the error of an import."""
    if handler.type is None:
        return True
    return any(getattr(node, "id", "") in IMPORT_ERRORS for node in walk(handler.type))


def _candidates(base: Path, dotted: str) -> Iterator[Path]:
    place = base.joinpath(*dotted.split(".")) if dotted else base
    for path in (place / "__init__.py", place.with_name(place.name + ".py") if dotted else None):
        if path is not None and path.is_file():
            yield path
