"""Functions as values: those that a list of callbacks, a dict or an attribute holds, with what they are bound to."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from ..calls import is_property
from ..values.kinds import LocalFunction, LocalModule
from .by_text import cell_order, methods_by_text
from .state import NONE, Cell, Flow, joined

if TYPE_CHECKING:
    from .interpreter import Interpreter

PARTIAL = "functools.partial"


class Bound(NamedTuple):
    """A function with the object that it is a method of, and the arguments that it has got already."""

    function: LocalFunction
    receiver: Flow = NONE
    given: tuple[Flow, ...] = ()
    named: tuple[tuple[str | None, Flow], ...] = ()
    is_value: bool = False  # it was found in a variable, which can hold others elsewhere


class FunctionValues:
    """Knows the functions of a program that are handed around instead of being called."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run
        self._bound: dict[Cell, list[Bound]] = {}

    def of(self, node: ast.expr, base: Flow = NONE) -> Flow:
        """Return the function that a name, an attribute of `base` or a lambda is, NONE for what is called at once."""
        run = self.run
        outer = run.scope.source.parents.get(node)
        if isinstance(outer, ast.Call) and outer.func is node:
            return NONE
        if isinstance(node, ast.Attribute):
            methods = self._methods(node.attr, base)
            if methods:
                return self._held(run.new_cell(node), methods)
        if not self._may_be_function(node):
            return NONE
        values = run.analysis.evaluate(node, run.scope)
        functions = [value for value in values if isinstance(value, LocalFunction) and value.receiver is None]
        flow = NONE
        for function in functions:
            flow = joined(flow, self._held(Cell(function.node, ()), [Bound(function)]))
        return flow

    def _may_be_function(self, node: ast.expr) -> bool:
        """Return whether an expression names what is defined somewhere, or is a function itself."""
        scope = self.run.scope
        if isinstance(node, ast.Name):
            bindings = (scope.find(node.id) or (scope, []))[1]
            return any(binding.kind in ("definition", "import") for binding in bindings)
        if isinstance(node, ast.Attribute):
            return any(isinstance(value, LocalModule) for value in self.run.analysis.evaluate(node.value, scope))
        return isinstance(node, ast.Lambda)

    def _methods(self, name: str, base: Flow) -> list[Bound]:
        found = []
        for cell in sorted(base.cells, key=cell_order):
            method = self.run.analysis.classes.method(cell.kind, name) if cell.kind else None
            if method is not None and not is_property(method.node):
                found.append(Bound(method, Flow(cells=frozenset([cell]))))
        return found

    def by_text(self, node: ast.Call) -> Flow:
        """Return the methods that getattr(object, name) gives, NONE where it gives none."""
        methods = [Bound(*pair) for pair in methods_by_text(self.run, node)]
        return self._held(self.run.new_cell(node), methods) if methods else NONE

    def partial(self, node: ast.Call, given: list[Flow], named: list[Flow]) -> Flow:
        """Return what functools.partial makes of a function, NONE for other calls."""
        run = self.run
        if not given or PARTIAL not in run.analysis.called(node, run.scope):
            return NONE
        keywords = tuple((keyword.arg, flow) for keyword, flow in zip(node.keywords, named))
        inner = self.held_by(given[0])
        bound = [one._replace(given=(*one.given, *given[1:]), named=(*one.named, *keywords)) for one in inner]
        return self._held(run.new_cell(node), bound) if bound else NONE

    def held_by(self, flow: Flow) -> list[Bound]:
        """Return the functions that a value can be."""
        cells = [cell for cell in flow.cells if cell in self._bound]
        return [bound for cell in sorted(cells, key=cell_order) for bound in self._bound[cell]]

    def run_the_rest(self) -> None:
        """Run the functions that only something unknown calls, as a thread does, without arguments."""
        for bound in [bound for bounds in self._bound.values() for bound in bounds]:
            if bound.function.scope not in self.run.seen and self.run.has_time():
                self.run.calls.run_function(bound.function.node, bound.function, bound.receiver, [], [], bound)

    def _held(self, cell: Cell, bounds: list[Bound]) -> Flow:
        known = self._bound.setdefault(cell, [])
        for bound in (one._replace(is_value=True) for one in bounds):
            if bound not in known:
                known.append(bound)
        return Flow(cells=frozenset([cell]))
