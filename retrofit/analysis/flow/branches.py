"""The branches of a test that a node is in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..files.source import Source


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
