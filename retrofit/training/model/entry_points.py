"""Methods and layers of a model that a training calls itself: `model.encode(x)`, `model.head(z)`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import is_method, last_name
from retrofit.analysis.flow.bindings import class_of_own
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.torch_api.modules import MODULE_CONTAINERS, PARAMETER_CLASSES, PARAMETERS, PARAMETERS_OF_LAYERS

from .gradients import has_gradients, is_switched_off
from .models import FORWARD, Call, Model
from .modules import is_layer, is_module

if TYPE_CHECKING:
    from .. import Project

SELECTIONS = frozenset({"list", "tuple", "iter", "filter", "chain"})


def entry_points(project: Project, model: Model) -> list[str]:
    """Return the names of what a training runs with gradients of a model, other than the model as a whole."""
    stepping = steps_inside(project, model)
    calls = [call for call in model.calls if call.method not in FORWARD and not _is_own(project, call)]
    calls = [call for call in calls if call.method not in stepping]
    batches = project.nodes_in_batches
    found = {
        call.method
        for call in calls
        if call.call in batches and has_gradients(project.analysis, call.scope, call.call) and _learns(project, call)
    }
    return sorted(found | model.own)


def steps_inside(project: Project, model: Model) -> list[str]:
    """Return the methods of a model that call backward themselves."""
    training = {frame.scope.node for path in project.paths for frame in path.frames}
    inside = {c.method for c in model.calls if any(f.node in training for f in _methods_run(project, c))}
    for call in model.calls:  # the forward pass of the model, or of a layer that a method of its own runs
        run = project.analysis.functions_called(call.call, call.scope) if call.method in FORWARD | model.own else ()
        inside |= {call.method or "forward" for function in run if function.node in training}
    return sorted(inside)


def _methods_run(project: Project, call: Call) -> list[LocalFunction]:
    """Return the methods of the model that a call runs; a static one is given the model, or whatever it trains."""
    values = project.analysis.evaluate(call.call.func, call.scope)
    return [value for value in values if isinstance(value, LocalFunction) and is_method(value.scope)]


def _is_own(project: Project, call: Call) -> bool:
    """Return whether a method of the model calls another one: self.encode(x)."""
    function = call.call.func
    while isinstance(function, ast.Subscript):
        function = function.value
    owner = class_of_own(function, call.scope) if isinstance(function, ast.Attribute) else None
    return owner is not None and is_module(project.analysis, Instance(owner))


def _learns(project: Project, call: Call) -> bool:
    """Return whether a call runs layers, or reads parameters: a loss of given outputs does neither."""
    values = _methods_run(project, call)
    if not values:
        return not any(isinstance(v, LocalFunction) for v in project.analysis.evaluate(call.call.func, call.scope))
    if all(_gives_parameters(value) for value in values):
        return False
    if all(is_switched_off(project.analysis, value.scope, value.node.body[-1]) for value in values):  # type: ignore[index]
        return False  # under torch.no_grad() as a whole
    functions = [*values, *functions_reached(project.analysis, [(call.call, call.scope)])]
    return any(_reads_parameters(project, function) for function in functions)


def _gives_parameters(function: LocalFunction) -> bool:
    """Return whether a function gives parameters as they are: `return (p for p in self.parameters() if ...)`."""
    returned = [node.value for node in own_nodes(function.node).of(ast.Return)]
    return bool(returned) and all(part is not None and _is_listing(part) for part in returned)


def _is_listing(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        arguments = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        is_list = last_name(node) in PARAMETERS
        return is_list or (last_name(node) in SELECTIONS and any(_is_listing(part) for part in arguments))
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        (first, *_) = node.generators
        is_same = isinstance(node.elt, ast.Name) and node.elt.id in {
            part.id for part in walk(first.target) if isinstance(part, ast.Name)
        }
        return is_same and _is_listing(first.iter)
    return isinstance(node, (ast.List, ast.Tuple)) and all(_is_listing(part) for part in node.elts)


def _reads_parameters(project: Project, function: LocalFunction) -> bool:
    """Return whether a function runs layers or reads parameters, with gradients."""
    return any(
        _is_learnt(project, node, function.scope) and not is_switched_off(project.analysis, function.scope, node)
        for node in own_nodes(function.node)
    )


def _is_learnt(project: Project, node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, (ast.For, ast.comprehension)):  # `for layer in self.layers: x = layer(x)`
        parts = (part for part in walk(node.iter) if isinstance(part, ast.Attribute))
        return any(project.analysis.named(part, scope) & MODULE_CONTAINERS for part in parts)
    if isinstance(node, ast.Call):
        is_listing = isinstance(node.func, ast.Attribute) and node.func.attr in PARAMETERS
        return is_listing or any(
            is_layer(project.analysis, value) for value in project.analysis.evaluate(node.func, scope)
        )
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        is_parameter = bool(project.analysis.named(node, scope) & PARAMETER_CLASSES)
        return is_parameter or node.attr in PARAMETERS_OF_LAYERS
    return False
