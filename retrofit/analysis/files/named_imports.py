"""Modules that a program imports by a name that it puts together: import_module("data." + name).

What is constant in the name says which package it is of; of that every module that fits is taken. Of an option of the
command line its choices are taken, or its default and the modules in the same folder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..nodes import Nodes

IMPORTERS = {"import_module", "__import__", "locate"}
FILE_LOADERS = {"spec_from_file_location", "load_source", "SourceFileLoader", "run_path"}
ADDS_OPTION = "add_argument"
ANYTHING = "\0"  # in a name: what is not known
MOST_MODULES, MOST_DEPTH, MOST_LEVELS = 200, 5, 4


@dataclass(frozen=True)
class NamedImport:
    """A call that imports a module by name; each of `names` may hold ANYTHING, a leading dot is of a package."""

    call: ast.Call
    names: tuple[str, ...]

    @property
    def is_computed(self) -> bool:
        return not self.names or any(ANYTHING in name for name in self.names)


def named_imports(nodes: Nodes) -> Iterator[NamedImport]:
    """Yield the imports by name among the nodes of one file."""
    for node in nodes.of(ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in IMPORTERS and (node.args or node.keywords):
            given = node.args[0] if node.args else node.keywords[0].value
            package = _package(node)
            yield NamedImport(node, tuple(sorted(f"{package}{text}" for text in _texts(given, nodes, MOST_DEPTH))))
        elif function in FILE_LOADERS:
            yield NamedImport(node, (ANYTHING,))


def modules_named(name: str, folders: list[Path], importer: Path) -> list[Path]:
    """Return the files of the modules that a name with unknown parts can mean, as seen from the file `importer`."""
    pattern = re.compile("".join(r"[\w.]*" if part == ANYTHING else re.escape(part) for part in _split(name)))
    known = name.partition(ANYTHING)[0]
    if name.startswith("."):
        level = len(known) - len(known.lstrip("."))
        base = importer.parent
        for _ in range(level - 1):
            base = base.parent
        known = known.lstrip(".")
        pattern = re.compile(pattern.pattern[2 * level :])
        folders = [base]
    elif "." not in known and len(known.strip("_")) < 3:
        return []  # the name of any module
    package = known.rpartition(".")[0]
    for folder in folders:
        place = folder.joinpath(*package.split(".")) if package else folder
        found = [path for path in _files(place, deep=bool(package)) if pattern.fullmatch(_dotted(path, folder))]
        if found:
            return found[:MOST_MODULES]
    return []


def in_same_folders(found: list[Path], apart_from: Path) -> list[Path]:
    """Return the other modules in the folders of some, where these are not `apart_from`: a folder of models."""
    folders = dict.fromkeys(path.parent for path in found if path.name != "__init__.py" and path.parent != apart_from)
    files = (path for folder in folders for path in _files(folder, deep=False) if path.name != "__init__.py")
    return [path for path in files if path not in found][:MOST_MODULES]


def _package(call: ast.Call) -> str:
    """Return the package that a relative name is of, where the call says it: import_module("." + name, "models")."""
    given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "package")]
    texts = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return texts[0] if texts else ""


def _files(place: Path, deep: bool) -> list[Path]:
    if not place.is_dir() or place.is_symlink():
        return []
    found = sorted(place.rglob("*.py") if deep else place.glob("*.py"))
    return [path for path in found if len(path.relative_to(place).parts) <= MOST_LEVELS and not path.is_symlink()]


def _dotted(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _split(name: str) -> list[str]:
    return [part for part in re.split(f"({ANYTHING})", name) if part]


def _texts(node: ast.expr, nodes: Nodes, depth: int) -> set[str]:
    """Return the texts that an expression can be, ANYTHING for what is not known."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else {ANYTHING}
    if depth == 0:
        return {ANYTHING}
    if isinstance(node, ast.IfExp):
        return _texts(node.body, nodes, depth - 1) | _texts(node.orelse, nodes, depth - 1)
    if isinstance(node, ast.JoinedStr):
        return _joined([_texts(part, nodes, depth - 1) for part in node.values])
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value, nodes, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_texts(node.left, nodes, depth - 1), _texts(node.right, nodes, depth - 1)])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return {re.sub(r"%(\(\w+\))?[sdr]", ANYTHING, text) for text in _texts(node.left, nodes, depth - 1)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = _texts(node.func.value, nodes, depth - 1)
        if node.func.attr == "format":
            return {re.sub(r"\{[^{}]*\}", ANYTHING, text) for text in inner}
        parts = getattr(node.args[0], "elts", []) if node.func.attr == "join" and node.args else []
        if parts and inner == {"."}:
            texts = [_texts(part, nodes, depth - 1) for part in parts]
            return _joined([part for text in texts for part in ({"."}, text)][1:])
    if isinstance(node, ast.Name):
        if node.id in ("__name__", "__package__"):
            return {"."}  # the package of this very file
        given = [value for value in _assigned(node.id, nodes)]
        return set().union(*(_texts(value, nodes, depth - 1) for value in given)) if given else {ANYTHING}
    return texts_of_option(node.attr, nodes.of(ast.Call)) if isinstance(node, ast.Attribute) else {ANYTHING}


def texts_of_option(name: str, calls: Iterable[ast.Call]) -> set[str]:
    """Return the texts that an option of the command line can be: its choices, or its default and ANYTHING else."""
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != ADDS_OPTION:
            continue
        names = [part.value for part in call.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if name not in {text.lstrip("-").replace("-", "_") for text in names}:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        choices = getattr(given.get("choices"), "elts", [])
        texts = {part.value for part in (choices or [given.get("default")]) if isinstance(part, ast.Constant)}
        return {text for text in texts if isinstance(text, str)} | (set() if choices else {ANYTHING})
    return {ANYTHING}


def _assigned(name: str, nodes: Nodes) -> Iterator[ast.expr]:
    """Yield what a name is assigned anywhere in a file, or takes from a list that is written out in a loop."""
    for node in nodes.of(ast.Assign, ast.For, ast.comprehension):
        if isinstance(node, ast.Assign):
            if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
                yield node.value
        elif getattr(node.target, "id", "") == name:
            yield from getattr(node.iter, "elts", [ast.Constant(None)])


def _joined(parts: list[set[str]]) -> set[str]:
    texts = {""}
    for part in parts:
        texts = {before + after for before in texts for after in part}
        if len(texts) > MOST_MODULES:
            return {ANYTHING}
    # f"{__name__}.{module}" is a module of this package: one dot.
    return {re.sub(r"^\.\.(?=[^.])", ".", text) for text in texts}
