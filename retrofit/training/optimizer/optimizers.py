"""The optimizers of a project, and the expressions whose parameters they are given."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.containers import added_to
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, LocalFunction, Result
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.modules import CHILDREN, LAYER_PACKAGE, MODULES, PARAMETERS

from .optimizer_classes import Builder, builders_in, positions_of

_PARAMETERS = PARAMETERS | CHILDREN | MODULES
MOST_STEPS = 400
_CONTAINERS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Optimizer:
    """A call that makes an optimizer, and the argument that holds its parameters.

    `rate`: what the call itself is given as learning rate; it may have another one, in `**options` or by default.
    """

    call: ast.Call
    scope: Scope
    builders: tuple[Builder, ...]
    parameters: ast.expr | None
    rate: ast.expr | None

    @property
    def is_alone(self) -> bool:
        """Whether the call makes optimizers only, as far as is known: it is not a general factory."""
        return all(builder.name for builder in self.builders)


def find_optimizers(analysis: Analysis) -> list[Optimizer]:
    """Return the optimizers that the running code makes from torch.optim, in source order."""
    found = []
    for node, scope in reached_nodes(analysis):
        builders = builders_in(analysis, node, scope) if isinstance(node, ast.Call) else []
        classes = [builder for builder in builders if builder.name]
        if classes:
            assert isinstance(node, ast.Call)
            given = argument_for(node, ["params"], "params")
            found.append(Optimizer(node, scope, tuple(builders), given, _rate(analysis, node, classes)))
    return found


def parameter_owners(analysis: Analysis, optimizer: Optimizer) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions whose parameters an optimizer is given: `model` of `SGD(model.parameters())`.

    Lists of groups, filters, chains and functions of the user are looked into. Of a part of a model, `model.conv1`,
    both the part and the model are returned.
    """
    search = _Search(analysis)
    if optimizer.parameters is not None:
        search.visit(optimizer.parameters, optimizer.scope)
    return search.found


def _rate(analysis: Analysis, call: ast.Call, builders: list[Builder]) -> ast.expr | None:
    """Return what a call is given as learning rate."""
    given = (argument_for(call, positions_of(analysis, builder), "lr") for builder in builders)
    return next((rate for rate in given if rate is not None), None)


class _Search:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.seen: set[tuple[ast.AST, Scope]] = set()
        self.seen_calls: set[ast.Call] = set()
        self.found: list[tuple[ast.expr, Scope]] = []

    def visit(self, node: ast.expr, scope: Scope) -> None:
        if (node, scope) in self.seen or len(self.seen) > MOST_STEPS:
            return
        self.seen.add((node, scope))
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self._visit_call(part, scope)
            elif isinstance(part, (ast.Name, ast.Attribute)) and part is not node:
                self._visit_values(part, scope)
            if isinstance(part, ast.Attribute) and self._is_layer(part.value, scope):
                self._add(part.value, scope)  # self.head.weight
        self._visit_values(node, scope)

    def _is_layer(self, node: ast.expr, scope: Scope) -> bool:
        values = () if getattr(node, "id", "") == "self" else self.analysis.evaluate(node, scope)
        builders = [value.builder for value in values if isinstance(value, Result)]
        is_of_torch = any(
            builder.startswith(LAYER_PACKAGE) and builder.rpartition(".")[2][:1].isupper() for builder in builders
        )
        return is_of_torch or any(is_module(self.analysis, value) for value in values)

    def _visit_values(self, node: ast.expr, scope: Scope) -> None:
        """Look into what a name holds: a list of groups that was made before, and what was added to it."""
        if isinstance(node, ast.Name):
            owner, bindings = scope.find(node.id) or (scope, [])
            made = [b.value for b in bindings if isinstance(b.value, (ast.BinOp, ast.IfExp)) and not b.path]
            for part in (*made, *added_to(node.id, owner)):
                self.visit(part, owner)
        for value in self.analysis.evaluate(node, scope):
            if isinstance(value, Result) and value.call is not node:
                self._visit_call(value.call, value.scope)
                for argument in value.call.args:
                    self.visit(argument, value.scope)
            elif isinstance(value, Display) and value.node is not node and isinstance(value.node, _CONTAINERS):
                self.visit(value.node, value.scope)
                outer = value.scope.source.parents.get(value.node)
                names = [t.id for t in getattr(outer, "targets", []) if isinstance(t, ast.Name)]
                for added in (part for name in names for part in added_to(name, value.scope)):
                    self.visit(added, value.scope)  # where the list is made: in a method of the model, say

    def _visit_call(self, call: ast.Call, scope: Scope) -> None:
        if call in self.seen_calls:
            return
        self.seen_calls.add(call)
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in _PARAMETERS:
            self._add(function.value, scope)
        for value in self.analysis.evaluate(function, scope):
            if not isinstance(value, LocalFunction):
                continue
            if value.receiver is not None and isinstance(function, ast.Attribute):
                if any(_is_parameters_call(node) for node in own_nodes(value.node)):
                    self._add(function.value, scope)  # model.get_params() yields its own
            elif isinstance(value.node, FUNCTIONS):
                for node in own_nodes(value.node):
                    if _is_parameters_call(node):
                        self._add(node.func.value, value.scope)  # type: ignore[attr-defined]

    def _add(self, node: ast.expr, scope: Scope) -> None:
        while True:
            if (node, scope) not in self.found:
                self.found.append((node, scope))
            is_own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
            if is_own or not isinstance(node, (ast.Attribute, ast.Subscript)):
                return
            node = node.value


def _is_parameters_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARAMETERS
