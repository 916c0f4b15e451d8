"""Statements that go: with their lines, with the `if` that holds nothing else, or with a `pass` in their place."""

from __future__ import annotations

import ast
from collections.abc import Collection

from .edits import Edit, block_of, delete_statement, has_own_lines, replace
from .source import Source


def remove(source: Source, statement: ast.stmt, going: Collection[ast.stmt]) -> list[Edit]:
    """Return the edits that remove a statement, one of several in `going`, so that no block is left empty."""
    block = block_of(source, statement)
    if not has_own_lines(source, statement):
        return [replace(source, statement, "pass")]
    if any(other not in going for other in block):
        return [delete_statement(source, statement)]
    parent = source.parents[statement]
    is_whole_if = isinstance(parent, ast.If) and block is parent.body and not parent.orelse
    if is_whole_if and not is_elif(source, parent) and len(block_of(source, parent)) > 1:  # type: ignore[arg-type]
        return [delete_statement(source, parent)]  # type: ignore[arg-type]
    if statement is not block[-1] and has_own_lines(source, block[-1]):
        return [delete_statement(source, statement)]
    return [replace(source, statement, "pass")]


def is_elif(source: Source, node: ast.AST) -> bool:
    start, _ = source.span(node)
    return source.text.startswith("elif", start)
