"""Classes of tuples with names that a function makes: `Losses = namedtuple("Losses", "fit size")`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..python_api import NAMED_TUPLES
from ..scopes import Scope
from .kinds import Result

if TYPE_CHECKING:
    from .inference import Analysis


def fields_of_tuple(analysis: Analysis, call: ast.Call, scope: Scope) -> list[str]:
    """Return the names of the entries of a tuple that a call makes, none where it makes none that has names."""
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, Result) and value.builder in NAMED_TUPLES and len(value.call.args) > 1:
            return _names(value.call.args[1])
    return []


def _names(given: ast.expr) -> list[str]:
    if isinstance(given, ast.Constant):
        return str(given.value).replace(",", " ").split()
    parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    firsts = [part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part for part in parts]
    return [str(part.value) for part in firsts if isinstance(part, ast.Constant)]
