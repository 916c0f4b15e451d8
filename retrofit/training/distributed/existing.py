"""Detect values that exist where they would be computed earlier: set on every path there, and not tested there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import block_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, parameters

from .reads import loaded, stored

LOOPS = (ast.For, ast.AsyncFor, ast.While)
ASKING = {"isinstance", "hasattr", "callable"}


def exists_before(scope: Scope, value: ast.expr, statement: ast.stmt) -> bool:
    """Return whether each local name that a value is read from has been given a value before a statement.

    A constant does not count: `loss = None` is there before the loss is.
    """
    return all(_is_set(scope, name, statement) for name in loaded(value) & set(scope.bindings))


def is_asked_for(scope: Scope, value: ast.expr, statement: ast.stmt) -> bool:
    """Return whether between a statement and a read it is tested if a value exists: `loss is not None`."""
    source, names = scope.source, loaded(value)
    first, last = source.span(statement)[0], source.span(value)[0]
    for node in walk(scope.node):
        if isinstance(node, (ast.Compare, ast.Call)) and first <= source.span(node)[0] < last:
            is_asking = (
                any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
                if isinstance(node, ast.Compare)
                else getattr(node.func, "id", "") in ASKING
            )
            if is_asking and loaded(node) & names:
                return True
    return False


def _is_set(scope: Scope, name: str, statement: ast.stmt) -> bool:
    around = set(scope.source.ancestors(statement))
    for earlier in _before(scope, statement):
        known = name in _of_header(earlier) or None if earlier in around else _sets(earlier, name)
        if known is not None:
            return known
    return isinstance(scope.node, FUNCTIONS) and name in parameters(scope.node)


def _before(scope: Scope, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield what runs before a statement on every way to it, backwards, with what is around it."""
    inner: ast.AST = statement
    while inner is not scope.node:
        if isinstance(inner, ast.stmt):
            block = block_of(scope.source, inner)
            yield from reversed(block[: block.index(inner)])
        inner = scope.source.parents[inner]
        if isinstance(inner, ast.stmt) and inner is not scope.node:
            yield inner


def _sets(statement: ast.stmt, name: str) -> bool | None:
    """Return whether a statement gives a name a value, False for a constant; None where it may do so or not."""
    if name not in stored(walk(statement)):
        return None
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return not isinstance(statement.value, ast.Constant) and statement.value is not None
    if isinstance(statement, ast.If):
        known = [_last(block, name) for block in (statement.body, statement.orelse)]
        return known[0] if known[0] == known[1] else False if False in known else None
    if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
        return _last(statement.body, name)
    if isinstance(statement, LOOPS):  # taken to turn once at least
        known_in_body = _last(statement.body, name)
        return known_in_body if known_in_body is not None else name in _of_header(statement) or None
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return True if statement.name == name else None
    return None if isinstance(statement, ast.AugAssign) else True


def _of_header(statement: ast.stmt) -> set[str]:
    """Return the names that the header of a loop or of a `with` gives a value."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return stored(walk(statement.target))
    items = statement.items if isinstance(statement, (ast.With, ast.AsyncWith)) else []
    return {name for item in items if item.optional_vars for name in stored(walk(item.optional_vars))}


def _last(block: list[ast.stmt], name: str) -> bool | None:
    for statement in reversed(block):
        known = _sets(statement, name)
        if known is not None:
            return known
    return None
