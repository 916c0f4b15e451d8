"""Calls of `map`, as what they are for each element: `map(make, sets)` holds `make(element)`."""

from __future__ import annotations

import ast

from ..scopes import Scope

MAP = "map"
ELEMENT = "<element>"  # which no program can have as a name


def applied(call: ast.Call, scope: Scope) -> ast.Call | None:
    """Return the call that `map` makes for each element, None where what it is given cannot be seen.

    It is in no text: nothing may be edited there.
    """
    known = vars(call)  # several ask, so it stays with the node
    if "applied" not in known:
        known["applied"] = _applied(call, scope)
    return known["applied"]  # type: ignore[no-any-return]


def _applied(call: ast.Call, scope: Scope) -> ast.Call | None:
    if len(call.args) < 2 or call.keywords or any(isinstance(part, ast.Starred) for part in call.args):
        return None
    elements: list[ast.expr] = [ast.copy_location(ast.Name(ELEMENT, ast.Load()), part) for part in call.args[1:]]
    made = ast.copy_location(ast.Call(call.args[0], elements, []), call)
    scope.source.parents.update({made: call, **dict.fromkeys(elements, made)})
    return made


def is_applied(node: ast.AST) -> bool:
    """Return whether a node is such a call, which is in no text."""
    given = node.args if isinstance(node, ast.Call) else []
    return any(isinstance(part, ast.Name) and part.id == ELEMENT for part in given)
