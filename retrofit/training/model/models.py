"""The models that a project trains: what its loops call, and whose parameters its optimizers change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.variables import Variable, upstream
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.model.modules import is_layer, is_module

from ..loops import Path
from ..optimizer.optimizers import Optimizer, parameter_owners
from .containers import held_in, holds_any, variables_holding
from .data_parallel import module_run

FORWARD = frozenset({"", "forward"})


@dataclass(frozen=True)
class Call:
    """A call in the training loop that runs a model: `model(x)`, or a method or a layer of it."""

    call: ast.Call
    scope: Scope
    method: str = ""  # or the way to a layer, as "encoder.head"; "" = the forward pass


@dataclass(frozen=True)
class Model:
    """A variable that holds a model in training, and every call of it that the training loops make.

    `is_container`: it holds several, as a dict or a list.
    """

    variable: Variable
    calls: list[Call] = field(default_factory=list, compare=False)
    is_container: bool = False


def find_models(analysis: Analysis, paths: list[Path], optimizers: list[Optimizer]) -> list[Model]:
    """Return the models in training: called in a loop that trains, and given to an optimizer or switched by train()."""
    optimized = {
        variable
        for optimizer in optimizers
        for node, scope in parameter_owners(analysis, optimizer)
        for variable in variables_holding(analysis, node, scope)
    }
    switched = _switched_to_training(analysis)
    models: dict[Variable, Model] = {}
    for call, node in _calls(analysis, paths):
        variables, is_container = held_in(analysis, node, call.scope)
        for variable in variables:
            related = {variable} | upstream(analysis, variable)
            is_optimized = related & optimized or (is_container and holds_any(analysis, variable, optimized))
            if is_optimized or (not optimized and variable in switched):
                models.setdefault(variable, Model(variable, is_container=is_container)).calls.append(call)
    whole = {kind: variable for variable, model in models.items() for kind in _kinds(analysis, model)}
    return [
        model
        for model in models.values()
        if not _is_part(analysis, model.variable, set(models))
        and not _runs_inside(model, whole)
        and not upstream(analysis, model.variable) & set(models)  # another name for one of them: `net = model.eval()`
    ]


def reachable_from_loops(
    analysis: Analysis, paths: list[Path], innermost: bool = False
) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield every node that the training loops run, in functions that they call too.

    An epoch with its evaluation, or with `innermost` what is done for each batch.
    """
    loops = [path.loops[0 if innermost else -1] for path in paths]
    return nodes_run(analysis, [(loop, frame.scope) for loop, frame in loops])


def _calls(analysis: Analysis, paths: list[Path]) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the calls in everything that the training loops run, with the expression of what may be a model."""
    for node, scope in reachable_from_loops(analysis, paths):
        if not isinstance(node, ast.Call):
            continue
        module = module_run(analysis, node, scope)
        if module is not None:
            yield Call(node, scope), module
            continue
        is_method = any(isinstance(value, LocalFunction) for value in analysis.evaluate(node.func, scope))
        if not is_method:
            yield Call(node, scope), node.func
            yield from _of_layer(analysis, node, scope)
        elif isinstance(node.func, ast.Attribute) and any(
            is_module(analysis, value) for value in analysis.evaluate(node.func.value, scope)
        ):
            yield Call(node, scope, node.func.attr), node.func.value


def _of_layer(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the models that the layer which a call runs is of: `model` of model.heads["box"](z)."""
    part, names = call.func, []
    layer = part.value if isinstance(part, ast.Subscript) else part
    if not any(is_layer(analysis, value) for value in analysis.evaluate(layer, scope)):
        return
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        names += [part.attr] if isinstance(part, ast.Attribute) else []
        part = part.value
        if names and any(is_module(analysis, value) for value in analysis.evaluate(part, scope)):
            yield Call(call, scope, ".".join(reversed(names))), part


def _switched_to_training(analysis: Analysis) -> set[Variable]:
    found: set[Variable] = set()
    for source in analysis.modules.sources.values():
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
                continue
            if node.func.attr == "train" and all(isinstance(argument, ast.Constant) for argument in node.args):
                found |= variables_holding(analysis, node.func.value, analysis.scope_at(source, node))
    return found


def _is_part(analysis: Analysis, variable: Variable, variables: set[Variable]) -> bool:
    """Return whether this is a layer of a class of models, of which another variable holds one as a whole."""
    if not variable.is_attribute or not is_module(analysis, Instance(variable.scope)):
        return False
    return any(other is not variable and other.scope is not variable.scope for other in variables)


def _kinds(analysis: Analysis, model: Model) -> Iterator[Scope]:
    """Yield the classes of what a model's calls run."""
    for call in model.calls:
        for value in analysis.evaluate(call.call.func, call.scope) if not call.method else ():
            if isinstance(value, Instance):
                yield value.scope


def _runs_inside(model: Model, whole: dict[Scope, Variable]) -> bool:
    """Return whether only the methods of another model call this one, which is a part of that: `self.decoder(x)`."""
    owners = [whole.get(call.scope.parent) if call.scope.parent else None for call in model.calls]
    return all(owner is not None and owner != model.variable for owner in owners)
