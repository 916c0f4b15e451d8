"""Reaching definitions: the bindings of a name that can have given it its value at one place."""

from __future__ import annotations

import ast

from ..edits import block_of
from ..scopes import Binding, Scope


def live_bindings(name: ast.Name, scope: Scope) -> tuple[Scope, list[Binding]]:
    """Return the bindings of a name that can count where it is read, and the scope they are in.

    Of a straight line of assignments that is the last one, with what changes it afterwards, also later in a loop around
    the place that the last one comes before; elsewhere all of them.
    """
    owner, bindings = scope.find(name.id) or (scope, [])
    within = [name, *scope.source.ancestors(name)]
    inner = [binding for binding in bindings if isinstance(binding.node, ast.comprehension)]
    own = [binding for binding in inner if _is_element(binding.node, within, scope)]
    bindings = own[-1:] or [binding for binding in bindings if binding not in inner]
    if owner is not scope or own:
        return owner, bindings
    statement = scope.source.statement(name)
    around = {statement, *scope.source.ancestors(statement)}
    before = [binding for binding in bindings if _place(binding) < _place_of(statement)]
    settled = [binding for binding in before if binding.kind == "value" and _comes_first(binding, scope, around)]
    settled = [binding for binding in settled if not isinstance(binding.node, ast.AugAssign)]
    if not settled:
        return owner, bindings
    last = max(settled, key=_place)
    repeated = _repeated(statement, last.node, scope)
    return owner, [
        binding
        for binding in bindings
        if (_place(binding) >= _place(last) and binding in before) or _is_in(binding.node, repeated, scope)
    ]


def _repeated(statement: ast.stmt, first: ast.AST, scope: Scope) -> ast.AST | None:
    """Return the outermost loop that runs a statement again after another one, which comes before the loop."""
    around_first = set(scope.source.ancestors(first))
    around = [statement] if isinstance(statement, ast.While) else []
    found = None
    for outer in (*around, *scope.source.ancestors(statement)):
        if outer is scope.node or outer in around_first:
            break
        if isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
            found = outer
    return found


def _is_in(node: ast.AST, outer: ast.AST | None, scope: Scope) -> bool:
    return outer is not None and outer in (node, *scope.source.ancestors(node))


def _is_element(generator: ast.AST, around: list[ast.AST], scope: Scope) -> bool:
    """Return whether a place is in a comprehension with this generator, and not in what it goes through first."""
    comprehension = scope.source.parents[generator]
    if comprehension not in around:
        return False
    first = comprehension.generators[0]  # type: ignore[attr-defined]
    return first not in around or first.iter not in around


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
