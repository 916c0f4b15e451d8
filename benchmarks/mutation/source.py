"""A script as text and syntax tree, and edits of it that keep every other byte."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

RANK = '_int(_os.environ.get("RANK", "0"))'
WORLD = '_int(_os.environ.get("WORLD_SIZE", "1"))'
HELPERS = "import os as _os; _int = int; import torch as _torch; import torch.distributed as _dist"
RANK_NAMES = re.compile(r"\b(rank|local_rank|get_rank|RANK|is_main|is_main_process|is_master|master)\b")
WORLD_NAMES = re.compile(r"\b(world|world_size|get_world_size|WORLD_SIZE|num_replicas|num_processes)\b")


@dataclass(frozen=True)
class Mutation:
    """One change of a file: `text` is the whole file after it, `line` (from 1) is where it was made, as `code`."""

    line: int
    code: str
    text: str


class Source:
    """One file of a project. Positions are those of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text = text if text.endswith("\n") else f"{text}\n"
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, in the order of the text where they have a place in it."""
        return sorted(
            ast.walk(self.tree), key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        )

    def of(self, *kinds: type) -> Iterator:
        return (node for node in self.nodes if isinstance(node, kinds))

    def calls(self, pattern: str) -> Iterator[ast.Call]:
        """Yield the calls whose function, as it is written, matches the whole pattern."""
        return (node for node in self.of(ast.Call) if re.fullmatch(pattern, ast.unparse(node.func)))

    def segment(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node belongs to."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> ast.AST:
        """Return the function that a node is in, or the module."""
        while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            node = self.parents[node]
        return node

    def is_within(self, node: ast.AST, *kinds: type) -> bool:
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, kinds):
                return True
        return False

    def loops(self, node: ast.AST) -> list[ast.For | ast.While]:
        """Return the loops that a node is in, the innermost first."""
        found = []
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, (ast.For, ast.While)):
                found.append(node)
        return found

    # --- edits

    def replaced(self, node: ast.AST, new: str) -> Mutation:
        """Return the file with `new` in place of a node."""
        start, end = self._span(node)
        return self._edited(node, [(start, end, new)])

    def removed(self, statement: ast.stmt) -> Mutation:
        return self.replaced(statement, "pass")

    def with_lines(self, statement: ast.stmt, after: Sequence[str] = (), before: Sequence[str] = ()) -> Mutation:
        """Return the file with further lines before and after a statement."""
        first, last = self._starts[statement.lineno - 1], self._starts[statement.end_lineno]
        indent = self._indent(statement)
        lines = {first: before, last: after}
        return self._edited(
            statement, [(at, at, "".join(f"{indent}{one}\n" for one in new)) for at, new in lines.items()]
        )

    def guarded(self, statement: ast.stmt, condition: str) -> Mutation:
        """Return the file with a statement under `if condition:`."""
        start, end = self._span(statement)
        inside = self.text.encode()[start:end].decode().replace("\n", "\n    ")
        return self._edited(statement, [(start, end, f"if {condition}:\n{self._indent(statement)}    {inside}")])

    def unguarded(self, statement: ast.If) -> Mutation:
        """Return the file with a condition that is always true."""
        start, end = self._span(statement.test)
        return self._edited(statement, [(start, end, "True")])

    def without_argument(self, call: ast.Call, name: str) -> Mutation:
        """Return the file with a call that has no keyword of this name."""
        kept = [*map(self.segment, call.args)]
        kept += [
            f"{k.arg}={self.segment(k.value)}" if k.arg else f"**{self.segment(k.value)}"
            for k in call.keywords
            if k.arg != name
        ]
        return self.replaced(call, f"{self.segment(call.func)}({', '.join(kept)})")

    def with_argument(self, call: ast.Call, name: str, value: str) -> Mutation:
        """Return the file with a call in which a keyword has this value."""
        kept = [*map(self.segment, call.args)]
        kept += [
            f"{k.arg}={self.segment(k.value)}" if k.arg else f"**{self.segment(k.value)}"
            for k in call.keywords
            if k.arg != name
        ]
        return self.replaced(call, f"{self.segment(call.func)}({', '.join([*kept, f'{name}={value}'])})")

    def _indent(self, statement: ast.stmt) -> str:
        """Return what its line has before a statement, tabs included."""
        start = self._starts[statement.lineno - 1]
        return re.match(r"\s*", self.text.encode()[start : start + statement.col_offset].decode())[0]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _edited(self, node: ast.AST, edits: list[tuple[int, int, str]]) -> Mutation:
        data = self.text.encode()
        for start, end, new in sorted(edits, reverse=True):
            data = data[:start] + new.encode() + data[end:]
        code = " ".join(self.segment(node).split())
        return Mutation(node.lineno, code[:100], with_helpers(data.decode()))


def with_helpers(text: str) -> str:
    """Return the text with the imports that inserted code needs, on the line of its first import."""
    if not re.search(r"\b(_os|_int|_dist|_torch)\b", text):
        return text
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if re.match(r"(import|from) (?!__future__)", line):
            lines[number] = f"{HELPERS}; {line}"
            return "".join(lines)
    return text
