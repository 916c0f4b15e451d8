"""Reaching definitions: the bindings of a name that can have given it its value at one place."""

from __future__ import annotations

import ast
from operator import attrgetter

from ..edits import block_of
from ..scopes import Binding, Scope, place_of


def live_bindings(name: ast.Name, scope: Scope) -> tuple[Scope, list[Binding]]:
    """Return the bindings of a name that can count where it is read, and the scope they are in.

    Of a straight line of assignments that is the last one, with what changes it afterwards, also later in a loop around
    the place that the last one comes before; elsewhere all of them.
    """
    owner, bindings = scope.find(name.id) or (scope, [])
    inner = [b for b in bindings if b.kind == "item" and isinstance(b.node, ast.comprehension)]
    if inner:
        own = [binding for binding in inner if _is_element(binding.node, name, scope)]
        if own:
            return owner, own[-1:]
        bindings = [binding for binding in bindings if binding not in inner]
    if any((binding.elsewhere or owner) is not scope for binding in bindings):
        return owner, bindings
    statement = scope.source.statement(name)
    around = {statement, *scope.source.ancestors(statement)}
    here = place_of(statement)
    before = sorted([binding for binding in bindings if binding.place < here], key=attrgetter("place"))
    last = next((i for i in reversed(range(len(before))) if _settles(before[i], scope, around)), None)
    if last is None:
        return owner, bindings
    repeated = _repeated(statement, before[last].node, scope)
    again = [b for b in bindings if _is_in(b.node, repeated, scope)] if repeated is not None else []
    return owner, list(dict.fromkeys([*before[last:], *again]))


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


def _is_in(node: ast.AST, outer: ast.AST, scope: Scope) -> bool:
    return outer in (node, *scope.source.ancestors(node))


def _is_element(generator: ast.AST, name: ast.Name, scope: Scope) -> bool:
    """Return whether a name is in a comprehension with this generator, and not in what that goes through first."""
    around = [name, *scope.source.ancestors(name)]
    comprehension = scope.source.parents[generator]
    if comprehension not in around:
        return False
    first = comprehension.generators[0]  # type: ignore[attr-defined]
    return first not in around or first.iter not in around


def _settles(binding: Binding, scope: Scope, around: set[ast.AST]) -> bool:
    """Return whether an assignment is in one of the blocks around a place: it is always made on the way."""
    node = binding.node
    if binding.kind != "value" or not isinstance(node, ast.stmt) or isinstance(node, ast.AugAssign):
        return False
    return not around.isdisjoint(block_of(scope.source, node))
