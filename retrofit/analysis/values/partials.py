"""Functions of libraries that a call runs through an object of functools.partial."""

from __future__ import annotations

import ast
import builtins

from ..scopes import Scope
from .inference import Analysis
from .kinds import Result


def run_through_partial(analysis: Analysis, call: ast.Call, scope: Scope) -> set[str]:
    """Return the full names of what a call runs so; the arguments may be later ones of the function.

    Also of a builtin that has been replaced: print = partial(print, flush=True).
    """
    found: set[str] = set()
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, Result) and value.is_partial:
            function = value.call.args[0]
            found |= analysis.named(function, value.scope)
            if isinstance(function, ast.Name) and hasattr(builtins, function.id):
                found |= {function.id} if analysis.evaluate(function, value.scope) == {value} else set()
    return found
