"""Values that a call returns, where a function returns what it is given: `model = fit(model, loader)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...scopes import FUNCTIONS
from ...values.inference import Analysis
from ..reaching_definitions import live_bindings
from ..sources import MOST_KEYS, Origin, Through, origins, sources
from .parameters import given_for


def returned(analysis: Analysis, start: Origin, through: Through = lambda origin: None) -> list[Origin]:
    """Return all that a value can come from; of a parameter of a function on the way, what the calls on the way give.

    Other calls of that function give other objects: `teacher = fit(teacher)` has nothing of `student = fit(student)`.
    `through` is that of `origins`.
    """
    search = _Search(analysis, start, through)
    found = search.run()
    while search.is_late:  # a call of a function of which parameters were followed before
        found = search.run()
    return found


class _Search:
    def __init__(self, analysis: Analysis, start: Origin, through: Through) -> None:
        self.analysis, self.start, self.through, self.is_late = analysis, start, through, False
        self._entered: set[ast.Call] = set()
        self._of_calls: dict[Origin, int] = {}  # parameters, with how many calls of their function were on the way

    def run(self) -> list[Origin]:
        self._of_calls.clear()
        found = list(origins(self.analysis, [self.start], self._through))
        self.is_late = any(len(self._calls(origin)) > number for origin, number in self._of_calls.items())
        return [origin for origin in found if not self._calls(origin, everywhere=True)]

    def _through(self, origin: Origin) -> Iterable[Origin] | None:
        if isinstance(origin.node, ast.Call):
            self._entered.add(origin.node)
        calls = self._calls(origin)
        if not calls:
            return self.through(origin)
        self._of_calls[origin] = len(calls)
        others = self._given(origin, None) - self._given(origin, calls)
        found = self.through(origin)
        return [part for part in (sources(self.analysis, origin) if found is None else found) if part not in others]

    def _calls(self, origin: Origin, everywhere: bool = False) -> set[ast.AST]:
        """Return the calls on the way to the function of which a name is a parameter; none for another expression.

        That it is where it is read, or `everywhere` in the function: `model` after model = model.to(device).
        """
        node = origin.node
        if not isinstance(node, ast.Name):
            return set()
        owner, bindings = live_bindings(node, origin.scope)
        function = owner.node
        bindings = owner.bindings.get(node.id, []) if everywhere else bindings
        if not isinstance(function, FUNCTIONS) or not any(binding.kind == "parameter" for binding in bindings):
            return set()
        if function is self.start.scope.node or function in self.start.scope.source.ancestors(self.start.node):
            return set()
        return {site.call for site in self.analysis.callers(function) if site.call in self._entered}

    def _given(self, origin: Origin, calls: set[ast.AST] | None) -> set[Origin]:
        node = origin.node
        assert isinstance(node, ast.Name)
        owner, _ = live_bindings(node, origin.scope)
        given = given_for(self.analysis, node.id, owner, origin.keys, calls)
        return {Origin(branch, scope, keys[:MOST_KEYS]) for part, scope, keys in given for branch in _branches(part)}


def _branches(node: ast.expr) -> list[ast.expr]:
    """Return an expression and those that it chooses from by a test."""
    parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
    return [node, *(branch for part in parts for branch in _branches(part))]
