"""Arguments that a call of a library's function gets, written in the call or handed on to it."""

from __future__ import annotations

import ast

from ...calls import argument_for
from ...scopes import Scope
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


def _entries(analysis: Analysis, starts: list[Origin]) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions that are put into containers under the keys that are asked for."""
    found = closure(starts, lambda origin: sources(analysis, origin) if origin.keys else ())
    return [
        (origin.node, origin.scope)
        for origin in found
        if not origin.keys and isinstance(origin.node, ast.expr) and is_followed(origin.node)
    ]
