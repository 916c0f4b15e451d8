"""Folders that a program adds to its search path: sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..nodes import Nodes

MOST_DEPTH, MOST_TEXTS = 12, 20
SAME = {"abspath", "realpath", "normpath", "resolve", "absolute", "as_posix", "fspath", "str"}
PATHS = {"Path", "PurePath", "PosixPath"}
CONSTANTS = {"pardir": os.pardir, "curdir": os.curdir, "sep": os.sep}


@dataclass(frozen=True)
class Added:
    """A folder that a file adds. Where `is_sure` is false it depends on where the program is started."""

    folder: Path
    is_first: bool  # it is searched before what was there
    is_sure: bool


def added_folders(nodes: Nodes, file: Path, start: Path) -> Iterator[Added]:
    """Yield what the nodes of `file` add to sys.path, in their order; `start` is where relative paths begin.

    A path that is written out from the root of the file system is left out: it is of one machine.
    """
    reader = _Reader(nodes, file)
    for node in nodes.of(ast.Call, ast.Assign, ast.AugAssign):
        for value, is_first in _additions(node):
            for text in reader.texts(value, MOST_DEPTH):
                if not text.startswith("\0"):
                    yield Added(Path(os.path.realpath(start / text)), is_first, os.path.isabs(text))


def _additions(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expressions that a statement or a call puts on the search path."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, arguments = node.func.attr, node.args
        if method == "addsitedir" and arguments:
            yield arguments[0], False
        elif not _is_search_path(node.func.value):
            return
        elif method == "insert" and len(arguments) == 2:
            yield arguments[1], True
        elif method == "append" and arguments:
            yield arguments[0], False
        elif method == "extend" and arguments:
            yield from ((part, False) for part in _parts(arguments[0]))
    elif isinstance(node, ast.AugAssign) and _is_search_path(node.target):
        yield from ((part, False) for part in _parts(node.value))
    elif isinstance(node, ast.Assign) and any(_is_search_path(target) for target in node.targets):
        yield from ((part, True) for part in _parts(node.value))


def _is_search_path(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", "") == "sys"


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the elements of a list that is written out, also in a sum: [folder] + sys.path."""
    if isinstance(node, ast.BinOp):
        return [*_parts(node.left), *_parts(node.right)]
    return [part.value if isinstance(part, ast.Starred) else part for part in getattr(node, "elts", [])]


class _Reader:
    """What expressions for paths can be, as text. A relative one begins where the program is started."""

    def __init__(self, nodes: list[ast.AST], file: Path) -> None:
        self._nodes = nodes
        self._file = str(file)
        self._known: dict[tuple[ast.expr | str, int], list[str]] = {}

    def texts(self, node: ast.expr, depth: int) -> list[str]:
        """Return what `node` can be; "\\0" begins a path of one machine; nothing where it cannot be told."""
        if not depth:
            return []
        key = (node.id if isinstance(node, ast.Name) else node, depth)
        if key not in self._known:  # functions that pass a path to each other are many ways to the same name
            self._known[key] = list(dict.fromkeys(self._texts(node, depth)))[:MOST_TEXTS]
        return self._known[key]

    def _texts(self, node: ast.expr, depth: int) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"\0{node.value}" if len(node.value) > 1 and os.path.isabs(node.value) else node.value
        elif isinstance(node, ast.Name):
            yield from [self._file] if node.id == "__file__" else self._of_name(node.id, depth)
        elif isinstance(node, ast.Attribute) and node.attr == "parent":
            yield from map(os.path.dirname, self.texts(node.value, depth - 1))
        elif isinstance(node, ast.Attribute) and node.attr in CONSTANTS:
            yield CONSTANTS[node.attr]
        elif isinstance(node, ast.Subscript):
            yield from self._of_parents(node, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            join = (lambda a, b: a + b) if isinstance(node.op, ast.Add) else _joined
            left, right = self.texts(node.left, depth - 1), self.texts(node.right, depth - 1)
            yield from (join(a, b.lstrip("\0")) for a in left for b in right)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            yield from self._filled(node.left, "%s", given, depth)
        elif isinstance(node, ast.JoinedStr):
            yield from self._of_format(node, depth)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, depth)

    def _of_call(self, call: ast.Call, depth: int) -> Iterator[str]:
        function, arguments = call.func, call.args
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in ("getcwd", "cwd"):
            yield "."
        elif name == "dirname" and arguments:
            yield from map(os.path.dirname, self.texts(arguments[0], depth - 1))
        elif name == "format" and isinstance(function, ast.Attribute):
            yield from self._filled(function.value, "{}", arguments, depth)
        elif name in SAME and (arguments or isinstance(function, ast.Attribute)):
            inner = arguments[0] if arguments else function.value  # type: ignore[attr-defined]
            yield from self.texts(inner, depth - 1)
        elif name in PATHS or name in ("join", "joinpath"):
            parts = [function.value] if name == "joinpath" and isinstance(function, ast.Attribute) else []
            yield from self._join([*parts, *arguments], depth)

    def _join(self, parts: list[ast.expr], depth: int) -> list[str]:
        found = [""]
        for part in parts:
            found = [_joined(before, text) for before in found for text in self.texts(part, depth - 1)]
        return found

    def _of_format(self, node: ast.JoinedStr, depth: int) -> list[str]:
        found = [""]
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            found = [before + text.lstrip("\0") for before in found for text in self.texts(inner, depth - 1)]
        return found

    def _filled(self, text: ast.expr, place: str, given: list[ast.expr], depth: int) -> list[str]:
        """Return a text with its places filled: "%s/lib" % folder, "{}/lib".format(folder)."""
        parts = text.value.split(place) if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
        found = parts[:1] if len(parts) == len(given) + 1 else []
        for value, rest in zip(given, parts[1:]):
            found = [before + inner.lstrip("\0") + rest for before in found for inner in self.texts(value, depth - 1)]
        return found

    def _of_parents(self, node: ast.Subscript, depth: int) -> Iterator[str]:
        """Yield path.parents[1], and of sys.path[0] the folder of the script."""
        inner, index = node.value, node.slice
        number = index.value if isinstance(index, ast.Constant) else None
        if _is_search_path(inner) and number == 0:
            yield os.path.dirname(self._file)
        if isinstance(inner, ast.Attribute) and inner.attr == "parents" and isinstance(number, int) and number >= 0:
            for text in self.texts(inner.value, depth - 1):
                for _ in range(number + 1):
                    text = os.path.dirname(text)
                yield text

    def _of_name(self, name: str, depth: int) -> Iterator[str]:
        """Yield what a name is given anywhere in the file: assigned, in a loop over a list, as an argument."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
                yield from self.texts(node.value, depth - 1)
            elif isinstance(node, ast.For) and getattr(node.target, "id", "") == name:
                for part in getattr(node.iter, "elts", []):
                    yield from self.texts(part, depth - 1)
            elif isinstance(node, ast.FunctionDef):
                yield from self._of_parameter(node, name, depth)

    def _of_parameter(self, function: ast.FunctionDef, name: str, depth: int) -> Iterator[str]:
        names = [parameter.arg for parameter in function.args.args]
        if name not in names:
            return
        for node in self._nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function.name:
                given = [keyword.value for keyword in node.keywords if keyword.arg == name]
                given += node.args[names.index(name) : names.index(name) + 1]
                for value in given:
                    yield from self.texts(value, depth - 1)


def _joined(before: str, text: str) -> str:
    return os.path.join(before, text.lstrip("\0") if before else text)
