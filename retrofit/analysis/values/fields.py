"""Fields of objects whose constructor is made for them: dataclasses and named tuples."""

from __future__ import annotations

import ast
from collections import defaultdict

from ..calls import CallSite
from ..python_api import NAMED_TUPLES
from ..scopes import Scope, own_nodes
from .inference import Analysis
from .kinds import Instance, LocalClass, Result, Value


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


def given_to_attribute(analysis: Analysis, node: ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what an object got for an attribute where it was made: `x` of Losses(fit=x).fit.

    A class of a library is taken to have an attribute for an argument that it is given by the attribute's name.
    """
    found: list[tuple[ast.expr, Scope] | None] = []
    for value in analysis.evaluate(node.value, scope):
        if isinstance(value, (Instance, Result)) and value.call is not None:
            where = analysis.scope_of(value.call, scope)
            found.append(given_to_field(analysis, value.call, where, node.attr))
            if isinstance(value, Result):
                found += [(keyword.value, where) for keyword in value.call.keywords if keyword.arg == node.attr]
    return list(dict.fromkeys(place for place in found if place is not None))


def given_to_entry(analysis: Analysis, call: ast.Call, scope: Scope, key: object) -> tuple[ast.expr, Scope] | None:
    """Return what a call that makes a tuple with names gives to its entry at an index, None for any other call."""
    names = [names for value in analysis.evaluate(call.func, scope) if (names := _fields(analysis, value))]
    if not names or not isinstance(key, int) or not -len(names[0]) <= key < len(names[0]):
        return None
    return CallSite(call, scope).argument(names[0], names[0][key])


def given_to_own(analysis: Analysis, owner: Scope, name: str) -> list[tuple[ast.expr, Scope]]:
    """Return what the calls that make objects of a dataclass, or of one derived from it, give to their field `name`."""
    known = analysis.fact("constructor calls", lambda: _constructor_calls(analysis))
    calls = [call for kind in (owner, *analysis.classes.derived(owner)) for call in known.get(kind, [])]
    given = (given_to_field(analysis, call, where, name) for call, where in calls)
    return [place for place in given if place is not None]


def _constructor_calls(analysis: Analysis) -> dict[Scope, list[tuple[ast.Call, Scope]]]:
    """Return the calls that make objects of each class of the project without a constructor of its own."""
    found: dict[Scope, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for scope in analysis.scopes():
        for call in own_nodes(scope.node).of(ast.Call):
            for value in analysis.evaluate(call.func, scope):
                if isinstance(value, LocalClass) and _fields(analysis, value):
                    found[value.scope].append((call, scope))
    return found


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
