"""Values that are computed from the weights of a model alone: the same on every process, whatever its batch is."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite, given_parameters
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, is_followed, origins
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import FUNCTIONS, Function, Scope
from retrofit.analysis.values.kinds import External, Instance, LocalFunction, LocalModule, Result, Value
from retrofit.training.model.modules import is_model, is_module
from retrofit.training.torch_api.modules import (
    CHILDREN,
    LAYER_PACKAGE,
    MODULES,
    PARAMETER_CLASSES,
    PARAMETERS,
    PARAMETERS_OF_LAYERS,
)
from retrofit.training.torch_api.runtime import MODEL_WRAPPERS

from ..wrapped import functions_run_inside

if TYPE_CHECKING:
    from retrofit.training import Project

LISTED = PARAMETERS | CHILDREN | MODULES
NO_VALUES = (External, LocalModule, LocalFunction, Instance)  # torch, a function that is called, self


def is_of_weights(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from weights alone, also where a method is handed them."""
    steps: dict[Origin, list[Origin]] = {}

    def through(origin: Origin) -> list[Origin]:
        is_end = _is_weight(project, origin) or isinstance(origin.node, ast.Constant)
        found = [] if is_end else [*inputs(project.analysis, origin), *_given_in_containers(project, origin)]
        steps[origin] = [inner for inner in found if inner.node is not _place_of(project, origin)]
        return steps[origin]

    found = list(origins(project.analysis, [Origin(node, scope)], through))
    ends = [origin for origin in found if not steps.get(origin) and not _is_replaced(project, origin, steps)]
    weights = [origin for origin in ends if _is_weight(project, origin)]
    others = (origin for origin in ends if origin not in weights and not isinstance(origin.node, ast.Constant))
    return bool(weights) and all(_names_an_object(project, origin) for origin in others)


def _place_of(project: Project, origin: Origin) -> ast.expr | None:
    """Return the index by which something is taken that no batch chooses: `i` of weights[i]."""
    index = origin.node.slice if isinstance(origin.node, ast.Subscript) else None
    return index if index is not None and not project.batch_values.sources_of(index, origin.scope) else None


def _is_weight(project: Project, origin: Origin) -> bool:
    """Return whether this is a parameter, the weight of a layer, or what no method of a module sets: a buffer.

    Or what all of them are taken from: `for layer in net.modules()`, `net[0].weight`.
    """
    node, scope, analysis = origin.node, origin.scope, project.analysis
    if isinstance(node, ast.Call):
        is_listed = isinstance(node.func, ast.Attribute) and node.func.attr in LISTED and not node.args
        return is_listed or bool(analysis.called(node, scope) & PARAMETER_CLASSES)
    if isinstance(node, ast.Name):
        outer = scope.source.parents.get(node)
        is_taken_of = isinstance(outer, ast.Subscript) or (isinstance(outer, ast.Call) and outer.func is not node)
        values = analysis.evaluate(node, scope)
        wrapped = {v for v in values if isinstance(v, Result) and v.builder in MODEL_WRAPPERS}
        models = {value for value in values if is_model(analysis, value) and not _is_tensor(value)}
        return is_taken_of and bool(models) and not values - models - wrapped
    if not isinstance(node, ast.Attribute):
        return False
    if variables_of(analysis, _base(node), scope) & {model.variable for model in project.models}:
        return True
    layers = analysis.evaluate(node.value, scope)
    if node.attr in PARAMETERS_OF_LAYERS and layers:
        return all(isinstance(layer, Result) and layer.builder.startswith(LAYER_PACKAGE) for layer in layers)
    owners = [value for value in layers if isinstance(value, Instance)]
    is_own = bool(owners) and all(is_module(analysis, value) for value in owners)
    return is_own and not any(analysis.classes.attribute_bindings(value.scope, node.attr) for value in owners)


def _is_tensor(value: Value) -> bool:
    """Return whether a function of torch.nn, or an object of it, gave a value: F.normalize(x), nn.Linear(4, 2)(x)."""
    is_made = isinstance(value, Result) and value.receiver is None and value.builder.rpartition(".")[2][:1].isupper()
    return isinstance(value, Result) and not is_made


def _base(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _names_an_object(project: Project, origin: Origin) -> bool:
    """Return whether this is a name of what is called, or of an object, not of a tensor."""
    node = origin.node
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    values = project.analysis.evaluate(node, origin.scope)
    return bool(values) and all(isinstance(value, NO_VALUES) for value in values)


def _given_in_containers(project: Project, origin: Origin) -> list[Origin]:
    """Return what calls of the modules in a container give for the parameter that a name is: layers[0](x, weights)."""
    node = origin.node
    if not isinstance(node, ast.Name) or not is_followed(node):
        return []
    owner, bindings = live_bindings(node, origin.scope)
    if not isinstance(owner.node, FUNCTIONS) or not any(binding.kind == "parameter" for binding in bindings):
        return []
    calls = project.analysis.fact("calls of contained modules", lambda: _calls_of_contained(project))
    sites = [site for site in calls.get(owner.node, []) if site not in project.analysis.callers(owner.node)]
    given = [site.argument(given_parameters(owner), node.id) for site in sites]
    return [origin.to(*place) for place in given if place is not None]


def _calls_of_contained(project: Project) -> dict[Function, list[CallSite]]:
    found: dict[Function, list[CallSite]] = {}
    for call, scope in project.in_batches.of(ast.Call):
        for function in functions_run_inside(project.analysis, call, scope):
            found.setdefault(function.node, []).append(CallSite(call, scope))
    return found


def _is_replaced(project: Project, origin: Origin, steps: dict[Origin, list[Origin]]) -> bool:
    """Return whether an end is due to a caller that is not seen, of a parameter that a container's calls give."""
    if is_followed(origin.node) or not isinstance(origin.node, ast.Name):
        return False
    readers = [first for first, found in steps.items() if origin in found]
    return bool(readers) and all(_given_in_containers(project, first) for first in readers)
