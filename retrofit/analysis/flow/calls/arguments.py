"""Arguments that a call of a library's function gets, written in the call or handed on to it."""

from __future__ import annotations

import ast

from ...calls import argument_for, is_method
from ...scopes import FUNCTIONS, Scope, parameters
from ...values.inference import Analysis
from ..sources import Origin, closure, is_followed, sources


def arguments_given(
    analysis: Analysis, call: ast.Call, scope: Scope, names: list[str], name: str
) -> list[tuple[ast.expr, Scope]]:
    """Return what a call can give for a parameter, also in `*values` and `**options`, and where that is written.

    `names`: the parameters in their order. Empty where nothing is given for it that can be seen.
    """
    given = argument_for(call, names, name)
    if given is not None:
        return [(given, scope)]
    starts = [Origin(keyword.value, scope, (name,)) for keyword in call.keywords if keyword.arg is None]
    spread = next((n for n, part in enumerate(call.args) if isinstance(part, ast.Starred)), None)
    if spread is not None and name in names[spread:]:
        values = call.args[spread].value  # type: ignore[attr-defined]
        starts.append(Origin(values, scope, (names.index(name) - spread,)))
    return _entries(analysis, starts)


def handed_in(analysis: Analysis, call: ast.Call, scope: Scope, node: ast.expr, where: Scope) -> ast.expr | None:
    """Return what a call of the function of `where` gives for its parameter `node`, which nothing sets in there.

    None for what is no such parameter, and where another function is called.
    """
    if not isinstance(node, ast.Name) or not isinstance(where.node, FUNCTIONS):
        return None
    names = parameters(where.node)
    is_own = any(function.node is where.node for function in analysis.functions_called(call, scope))
    if not is_own or node.id not in names or len(where.bindings.get(node.id, [])) > 1:
        return None
    return argument_for(call, names[1:] if is_method(where) else names, node.id)


def _entries(analysis: Analysis, starts: list[Origin]) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions that are put into containers under the keys that are asked for."""
    found = closure(starts, lambda origin: sources(analysis, origin) if origin.keys else ())
    return [
        (origin.node, origin.scope)
        for origin in found
        if not origin.keys and isinstance(origin.node, ast.expr) and is_followed(origin.node)
    ]
