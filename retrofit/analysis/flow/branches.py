"""Branches of a test that a node is in, and exits from its block before it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from ..edits import block_of
from ..files.source import Source

Kinds = tuple[type[ast.stmt], ...]


def is_in_body(outer: ast.If | ast.IfExp, part: ast.AST) -> bool:
    """Return whether a part of `if test:` or of `a if test else b` is what is done where the test holds."""
    return part is outer.body if isinstance(outer, ast.IfExp) else part in outer.body


def branches_around(source: Source, node: ast.AST, loop: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the bodies of the `if` statements between a node and a loop around it."""
    inner = node
    for outer in source.ancestors(node):
        if outer is loop:
            return
        if isinstance(outer, ast.If):
            yield from (block for block in (outer.body, outer.orelse) if inner in block)
        inner = outer


def exits_before(source: Source, node: ast.AST, kinds: Kinds = (ast.Return, ast.Raise)) -> Iterator[ast.expr]:
    """Yield the tests of `if test: return`, or of other exits, before a statement in its own block."""
    block = block_of(source, node) if isinstance(node, ast.stmt) else []
    for earlier in itertools.takewhile(lambda statement: statement is not node, block):
        if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], kinds):
            yield earlier.test
