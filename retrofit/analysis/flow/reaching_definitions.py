"""Reaching definitions: the bindings of a name that can have given it its value at one place."""

from __future__ import annotations

import ast

from ..edits import block_of
from ..scopes import Binding, Scope


def live_bindings(name: ast.Name, scope: Scope) -> tuple[Scope, list[Binding]]:
    """Return the bindings of a name that can count where it is read, and the scope they are in.

    Of a straight line of assignments that is the last one, with what changes it afterwards; elsewhere all of them.
    """
    owner, bindings = scope.find(name.id) or (scope, [])
    if owner is not scope:
        return owner, bindings
    statement = scope.source.statement(name)
    around = {statement, *scope.source.ancestors(statement)}
    before = [binding for binding in bindings if _place(binding) < _place_of(statement)]
    settled = [binding for binding in before if binding.kind == "value" and _comes_first(binding, scope, around)]
    settled = [binding for binding in settled if not isinstance(binding.node, ast.AugAssign)]
    if not settled:
        return owner, bindings
    last = max(settled, key=_place)
    return owner, [binding for binding in before if _place(binding) >= _place(last)]


def _comes_first(binding: Binding, scope: Scope, around: set[ast.AST]) -> bool:
    """Return whether an assignment is in one of the blocks around a place: it is always made on the way."""
    node = binding.node
    return isinstance(node, ast.stmt) and any(part in around for part in block_of(scope.source, node))


def _place(binding: Binding) -> tuple[int, int]:
    return _place_of(binding.node)


def _place_of(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.comprehension):  # which has no place of its own
        node = node.target
    elif isinstance(node, ast.withitem):
        node = node.context_expr
    return node.lineno, node.col_offset  # type: ignore[attr-defined]
