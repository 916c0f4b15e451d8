"""Fields of objects whose constructor is made for them: dataclasses and named tuples."""

from __future__ import annotations

import ast

from ..calls import CallSite
from ..python_api import NAMED_TUPLES
from ..scopes import Scope
from .inference import Analysis
from .kinds import LocalClass, Result, Value


def given_to_field(analysis: Analysis, call: ast.Call, scope: Scope, name: str) -> tuple[ast.expr, Scope] | None:
    """Return what a call gives to a field of the dataclass or named tuple that it makes, None for any other call."""
    for value in analysis.evaluate(call.func, scope):
        names = _fields(analysis, value)
        if name in names:
            return CallSite(call, scope).argument(names, name)
    return None


def fields_of_tuple(analysis: Analysis, call: ast.Call, scope: Scope) -> list[str]:
    """Return the names of the entries of a tuple that a call makes, none where it makes none that has names."""
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, Result) and value.builder in NAMED_TUPLES and len(value.call.args) > 1:
            return _names(value.call.args[1])
    return []


def _fields(analysis: Analysis, value: Value) -> list[str]:
    if isinstance(value, Result) and value.builder in NAMED_TUPLES and len(value.call.args) > 1:
        return _names(value.call.args[1])
    if isinstance(value, LocalClass) and analysis.classes.method(value.scope, "__init__") is None:
        lines = [line for base in reversed(analysis.classes.mro(value.scope)) for line in base.node.body]  # type: ignore[union-attr]
        return [
            line.target.id for line in lines if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]
    return []


def _names(node: ast.expr) -> list[str]:
    """Return the names in `"x y"`, `["x", "y"]` and `[("x", int), ("y", int)]`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace(",", " ").split()
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    firsts = [part.elts[0] if isinstance(part, ast.Tuple) and part.elts else part for part in parts]
    return [part.value for part in firsts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
