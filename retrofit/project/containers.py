"""What containers of a project hold: lists, tuples, dicts and the **options of a function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .calls import later_entries
from .scopes import Scope
from .values import NOTHING, Display, Item, Value, Values

if TYPE_CHECKING:
    from .analysis import Analysis

READERS = {"get", "pop", "setdefault"}  # methods of a dict that give an entry


class Containers:
    """Answers questions about what is in a container."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def entry(self, base: Value, key: object) -> Values:
        """Return what a container holds under `key`, or anywhere when the key is not known."""
        if not isinstance(base, Display):
            return frozenset([Item(base)])
        node, scope = base.node, base.scope
        if isinstance(node, (ast.Tuple, ast.List)):
            parts = node.elts
            if isinstance(key, int) and -len(parts) <= key < len(parts):
                parts = [parts[key]]
            return self._union(parts, scope)
        if isinstance(node, ast.Dict):
            pairs = [*zip(node.keys, node.values), *later_entries(node, scope)]
            exact = [value for name, value in pairs if isinstance(name, ast.Constant) and name.value == key]
            return self._union(exact if exact and key is not None else [value for _, value in pairs], scope)
        if isinstance(node, ast.DictComp):
            return self._analysis.evaluate(node.value, scope)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._analysis.evaluate(node.elt, scope)
        return NOTHING

    def at(self, values: Values, path: tuple[int, ...]) -> Values:
        """Return what stands at `path` in containers within containers."""
        for index in path:
            values = frozenset().union(*(self.entry(value, index) for value in values))
        return values

    def got(self, method: ast.Attribute, call: ast.Call, scope: Scope) -> Values:
        """Return what `table.get(key, default)` can be, for a dict of the project."""
        tables = self._analysis.evaluate(method.value, scope) if method.attr in READERS and call.args else NOTHING
        tables = frozenset(v for v in tables if isinstance(v, Display) and isinstance(v.node, (ast.Dict, ast.DictComp)))
        if not tables:
            return NOTHING
        key = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        return self._union(call.args[1:2], scope).union(*(self.entry(table, key) for table in tables))

    def elements(self, node: ast.expr | None, scope: Scope, path: tuple[int, ...]) -> Values:
        """Return what an iteration over `node` gives, at `path` inside each element."""
        analysis = self._analysis
        if isinstance(node, ast.Call) and node.args:
            names = analysis.called(node, scope)
            if "enumerate" in names:
                return self.elements(node.args[0], scope, path[1:]) if path[:1] == (1,) else NOTHING
            if "zip" in names and path:
                return self.elements(node.args[path[0]], scope, path[1:]) if path[0] < len(node.args) else NOTHING
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "items" and path[:1] == (1,):
                return self.at(self._anything(analysis.evaluate(node.func.value, scope)), path[1:])
            if node.func.attr == "values":
                return self.at(self._anything(analysis.evaluate(node.func.value, scope)), path)
        return self.at(self._anything(analysis.evaluate(node, scope)), path)

    def given_as_keyword(self, node: ast.Subscript, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return what callers give for `kwargs["name"]` in a function with **kwargs, and where."""
        owner = scope
        name, key = node.value, node.slice
        while owner.parent is not None and not owner.is_function:
            owner = owner.parent
        if not isinstance(name, ast.Name) or not isinstance(key, ast.Constant) or not owner.is_function:
            return []
        given = owner.node.args.kwarg  # type: ignore[union-attr]
        if given is None or given.arg != name.id:
            return []
        return [
            (keyword.value, site.scope)
            for site in self._analysis.callers(owner.node)  # type: ignore[arg-type]
            for keyword in site.call.keywords
            if keyword.arg == key.value
        ]

    def _anything(self, values: Values) -> Values:
        return frozenset().union(*(self.entry(value, None) for value in values))

    def _union(self, nodes: list[ast.expr], scope: Scope) -> Values:
        return frozenset().union(*(self._analysis.evaluate(node, scope) for node in nodes))
