"""One Python file of a project: its text exactly as it is, its syntax tree, and the way between both."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import stat
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..nodes import Nodes, children

LARGEST = 2 * 2**20  # bytes of a file that is read
_LINE_END = re.compile(r"\r\n|\r|\n")
_FUNCTION_OF = {"__iter__": "iter", "__next__": "next", "__len__": "len"}  # of Python, that calls the method
_PRINT_STATEMENT = re.compile(r"^\s*print\s+[^\s(=.\[]", re.MULTILINE)


class SourceError(ValueError):
    """A file that cannot be read as Python. The message says where and why."""


def printable(text: str) -> str:
    """Return a name as it may be shown in a terminal: what would control the terminal is written as in Python."""
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)


@dataclass(frozen=True, order=True)
class Place:
    """The place of something: `path` relative to the project, line and column counted from 1."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{printable(self.path)}:{self.line}:{self.column}"


@dataclass(eq=False)
class Source:
    """A parsed file. `text` has the file's own newlines and no byte order mark; `name` is for messages."""

    path: Path
    name: str
    text: str
    encoding: str
    has_bom: bool
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=Nodes)  # of the whole tree, in the order of ast.walk
    _chains: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Source({self.name!r})"

    def __post_init__(self) -> None:
        self.nodes.append(self.tree)
        for node in self.nodes:  # which grows meanwhile
            parts = children(node)
            self.parents.update(dict.fromkeys(parts, node))
            self.nodes += parts

    @cached_property
    def line_starts(self) -> list[int]:
        """Offsets in `text` at which lines start, as Python's tokenizer counts lines."""
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def newline(self) -> str:
        """The line end that most lines have."""
        ends = _LINE_END.findall(self.text)
        return max(set(ends), key=ends.count) if ends else "\n"

    def place(self, node: ast.AST) -> Place:
        start, _ = self.span(node)
        line = bisect_right(self.line_starts, start)
        return Place(self.name, line, start - self.line_starts[line - 1] + 1)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where in `text` the node starts and ends. Decorators belong to what they decorate."""
        first = min([node, *getattr(node, "decorator_list", [])], key=lambda part: part.lineno)  # type: ignore[attr-defined]
        start = self._offset(first.lineno, first.col_offset)  # type: ignore[attr-defined]
        if first is not node:
            start = self.text.rindex("@", 0, start)
        return start, self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """Return the node's text as it is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_of(self, offset: int) -> int:
        """Return the number, from 1, of the line that holds this offset."""
        return bisect_right(self.line_starts, offset)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, from the inside to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def chained(self, node: ast.AST) -> ast.AST:
        """Return the whole chain that `node` starts or continues: `x.abs().sum()` for `x` and for `x.abs()`."""
        below: list[ast.AST] = []
        while node not in self._chains:
            below.append(node)
            outer = self.parents.get(node)
            if not (isinstance(outer, ast.Attribute) or (isinstance(outer, ast.Call) and outer.func is node)):
                self._chains[node] = node
                break
            node = outer
        whole = self._chains[node]
        self._chains.update((part, whole) for part in below)
        return whole

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that holds `node`."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def comments(self) -> Iterator[tuple[int, str]]:
        """Yield (line number, text) of every comment."""
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string
        except (tokenize.TokenError, SyntaxError):  # what ast accepts and tokenize does not: a stray form feed
            return

    def _offset(self, line: int, utf8_column: int) -> int:
        """Return the offset of a position as `ast` gives it: its columns count bytes of UTF-8."""
        start = self.line_starts[line - 1]
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        text = self.text[start:end]
        return start + (utf8_column if text.isascii() else len(text.encode()[:utf8_column].decode()))


def read_source(path: Path, name: str | None = None, data: bytes | None = None) -> Source:
    """Read and parse a file, or what is to be written there. Raises SourceError: not there, not text, not Python 3."""
    name = name or str(path)
    try:
        data = read_file(path) if data is None else data
    except OSError as error:
        raise SourceError(f"{name}: cannot be read ({error.strerror})") from error
    if len(data) > LARGEST:
        raise SourceError(f"{name}: cannot be read (larger than {LARGEST // 2**20} MiB)")
    return parse_source(data, path, name)


def read_file(path: Path) -> bytes:
    """Return a file's content, as far as one byte beyond LARGEST; what is not a file and might block is an OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may already do something
        raise OSError(errno.EINVAL, "no file")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no file")
        return file.read(LARGEST + 1) or b""  # nothing, of a file that keeps its readers waiting


def parse_source(data: bytes, path: Path, name: str) -> Source:
    """Parse a file's bytes; see `read_source`."""
    has_bom = data.startswith(b"\xef\xbb\xbf")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode("utf-8-sig" if has_bom else encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise SourceError(f"{name}: not text in its declared encoding ({error}); save it as UTF-8") from error
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise SourceError(_syntax_message(name, text, error)) from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(f"{name}: nested too deeply to be read") from error
    if any(f".{method}" in text for method in _FUNCTION_OF):
        _call_functions(tree)
    return Source(path, name, text, encoding, has_bom, tree)


def _call_functions(tree: ast.Module) -> None:
    """Read `batches.__next__()` as next(batches), in place: one way to write it for all that looks for it."""
    for node in ast.walk(tree):
        method = node.func if isinstance(node, ast.Call) and not node.args and not node.keywords else None
        if not isinstance(node, ast.Call) or not isinstance(method, ast.Attribute) or method.attr not in _FUNCTION_OF:
            continue
        of_itself = isinstance(method.value, ast.Name) and method.value.id in ("self", "cls")
        if not of_itself and not (isinstance(method.value, ast.Call) and ast.unparse(method.value.func) == "super"):
            node.func = ast.copy_location(ast.Name(_FUNCTION_OF[method.attr], ast.Load()), method)
            node.args = [method.value]


def _syntax_message(name: str, text: str, error: Exception) -> str:
    line = getattr(error, "lineno", None) or 1
    reason = getattr(error, "msg", None) or str(error)
    if _PRINT_STATEMENT.search(text) or "Missing parentheses in call to" in reason or "except" in _line(text, line):
        return f"{name}:{line}: Python 2 syntax ({reason}); convert the file with 2to3 first"
    if "async" in _line(text, line):
        return f"{name}:{line}: `async` is a keyword since Python 3.7 ({reason}); write non_blocking=True instead"
    return f"{name}:{line}: invalid syntax ({reason}); the file must run on this Python first"


def _line(text: str, number: int) -> str:
    lines = _LINE_END.split(text)
    return lines[number - 1] if 0 < number <= len(lines) else ""
