"""Decorators of the project that store what they decorate, and return it: those of registries, by names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calls import CallSite, returns_of, takes
from ..files.source import Source
from ..scopes import Function, Scope, parameters
from .kinds import Instance, LocalClass, LocalFunction, Value, Values

if TYPE_CHECKING:
    from .inference import Analysis

Run = tuple[LocalFunction, tuple[CallSite, ...]]  # with the calls of functools.partial that it is made by
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Registries:
    """Answers which of the classes and functions that are registered somewhere an object of a registry has."""

    def __init__(self, analysis: Analysis, sites: list[CallSite]) -> None:
        self._analysis = analysis
        self._holders: dict[Scope, set[ast.Call]] = {}  # what is decorated, with what made the objects that have it
        for site in [site for site in sites if _is_application(site.call)]:
            holders = self._objects(_receiver(site.call.func), site.scope)
            for value in analysis.evaluate(site.call.args[0], site.scope) if holders else ():
                if isinstance(value, (LocalClass, LocalFunction)):
                    self._holders.setdefault(value.scope, set()).update(holders)

    def chosen(self, values: Values, node: ast.Call, scope: Scope) -> Values:
        """Return those of the values that the objects which a call is one of, or is given, can have."""
        if not any(self._holders_of(value) for value in values):
            return values
        given = [_receiver(node), *node.args, *(keyword.value for keyword in node.keywords)]
        objects = set().union(*(self._objects(part, scope) for part in given))
        known = set().union(*self._holders.values()) & objects
        if not known:
            return values
        return frozenset(v for v in values if not self._holders_of(v) or self._holders_of(v) & known)

    def _holders_of(self, value: Value) -> set[ast.Call]:
        if isinstance(value, (LocalClass, LocalFunction, Instance)):
            return self._holders.get(value.scope, set())
        return set()

    def _objects(self, node: ast.expr | None, scope: Scope) -> set[ast.Call]:
        values = self._analysis.evaluate(node, scope)
        return {value.call for value in values if isinstance(value, Instance) and value.call is not None}


def _receiver(node: ast.expr) -> ast.expr | None:
    """Return `LOSSES` of LOSSES.register("dice") and of LOSSES.register."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.value if isinstance(function, ast.Attribute) else None


def applications(analysis: Analysis) -> list[CallSite]:
    """Return what decorators do as calls: `@register("dice")` of a class as register("dice")(Dice)."""
    found = []
    for source in analysis.modules.sources.values():
        for node in source.nodes.of(*DEFINITIONS):
            calls = [_application(source, node, decorator) for decorator in node.decorator_list]
            found += [CallSite(call, analysis.scope_at(source, node)) for call in calls]
    return found


def is_followed(call: ast.Call, function: Function) -> bool:
    """Return whether a call gives a function its arguments; a decorator does if it gives back what it is given."""
    if not _is_application(call):
        return True
    values, names = returns_of(function), parameters(function)
    return bool(values) and all(isinstance(value, ast.Name) and value.id in names for value in values)


def taking(site: CallSite, found: list[Run]) -> list[Run]:
    """Return the functions that a call can run: of those of several classes the ones that take its arguments."""
    fitting = [pair for pair in found if len(found) == 1 or takes(replace(site, bound=pair[1]), pair[0].scope)]
    return fitting or found


def stored_in_attribute(body: list[ast.AST], receivers: set[str]) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield what `self.table[key] = value` stores: the name of the attribute, the key and the value."""
    for node in body:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            table = target.value if isinstance(target, ast.Subscript) else None
            if isinstance(table, ast.Attribute) and isinstance(table.value, ast.Name) and table.value.id in receivers:
                yield table.attr, target.slice, node.value  # type: ignore[attr-defined, union-attr]


def _is_application(call: ast.Call) -> bool:
    return bool(vars(call).get("is_application"))


def _application(source: Source, node: ast.stmt, decorator: ast.expr) -> ast.Call:
    """Return a call of a decorator, at the place of the decorator."""
    given = ast.copy_location(ast.Name(node.name, ast.Load()), decorator)  # type: ignore[attr-defined]
    call = ast.copy_location(ast.Call(decorator, [given], []), decorator)
    source.parents[given], source.parents[call] = call, node
    vars(call)["is_application"] = True
    return call
