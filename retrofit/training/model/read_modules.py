"""Modules that an optimizer trains and nothing calls: the training reads their parameters, `centers.weight[y]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.variables import Variable, upstream, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.modules import PARAMETER_CLASSES, PARAMETERS_OF_LAYERS

from ..optimizer.optimizers import Optimizer, parameter_owners
from .models import Model

Node = tuple[ast.AST, Scope]


def read_modules(
    analysis: Analysis, optimizers: list[Optimizer], models: list[Model], in_batches: list[Node]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of `parameters()` that give an optimizer what such a module has."""
    called = {variable for model in models for variable in ({model.variable} | upstream(analysis, model.variable))}
    read: set[Variable] = set()
    for node, scope in in_batches:
        if isinstance(node, ast.Attribute) and _is_parameter(analysis, node, scope):
            read |= variables_of(analysis, node.value, scope) - called
    read = {
        variable for variable in read if not _is_layer(analysis, variable) and not _is_handed_on(analysis, variable)
    }
    for optimizer in optimizers if read else ():
        for owner, scope in parameter_owners(analysis, optimizer):
            method = scope.source.parents[owner]
            call = scope.source.parents[method]
            if isinstance(call, ast.Call) and call.func is method and variables_of(analysis, owner, scope) & read:
                yield call, scope


def _is_parameter(analysis: Analysis, node: ast.Attribute, scope: Scope) -> bool:
    if node.attr in PARAMETERS_OF_LAYERS:
        return True
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Result) and value.builder in PARAMETER_CLASSES for value in values)


def _is_layer(analysis: Analysis, variable: Variable) -> bool:
    """Return whether a module is part of another, whose wrapper averages its gradients."""
    return variable.is_attribute and is_module(analysis, Instance(variable.scope))


def _is_handed_on(analysis: Analysis, variable: Variable) -> bool:
    """Return whether anything else gets hold of a module, perhaps to call it: Whole(encoder, decoder)."""
    for node, scope in reached_nodes(analysis):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        is_read = name == variable.name and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
        is_whole = is_read and not isinstance(scope.source.parents[node], ast.Attribute)
        if is_whole and variable in variables_of(analysis, node, scope):  # type: ignore[arg-type]
            return True
    return False
