"""Models that an optimizer changes and a training uses, where no call is seen that runs them.

Nothing would average their gradients: a library that is given the model runs it, or an object that cannot be followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.bindings import class_of_own
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import CHILDREN, MODULES, RUNS_NOTHING

from ...optimizer.optimizers import parameter_owners
from ..containers import entries_of, variables_holding
from ..gradients import has_gradients
from ..models import kinds_of
from ..modules import classes_inside, is_module
from .library_calls import OF_PROJECT

if TYPE_CHECKING:
    from ... import Project

ASKING = frozenset({"len", "isinstance", "hasattr", "getattr", "type", "id", "str", "repr", "print"})


def unseen_models(project: Project) -> Iterator[tuple[ast.AST, Scope, Variable]]:
    """Yield where the training uses what such a model gives, once for each."""
    analysis = project.analysis
    seen = _seen(project)
    wanted = {variable for variable in _owners(project) - seen if not upstream(analysis, variable) & seen}
    wanted = {variable for variable in wanted if not _is_part(project, variable)}
    kinds = [kind for model in project.models for kind in kinds_of(analysis, model)] if wanted else []
    averaged = classes_inside(analysis, kinds)
    for node, scope in project.in_batches if wanted else ():
        if not isinstance(node, (ast.Name, ast.Attribute)) or class_of_own(node, scope) in averaged:
            continue  # a part of a model, whose wrapper averages the gradients of all of it
        if _is_given(project, node, scope):
            for variable in variables_of(analysis, node, scope) & wanted:
                wanted.discard(variable)
                yield node, scope, variable


def _owners(project: Project) -> set[Variable]:
    """Return the variables whose parameters the optimizers of the training have."""
    per_batch = project.nodes_in_batches
    optimizers = [optimizer for optimizer in project.optimizers if optimizer.call not in per_batch]
    owners = dict(owner for optimizer in optimizers for owner in parameter_owners(project.analysis, optimizer))
    wholes = {node for node, scope in owners.items() if scope.source.parents[node] in owners}  # what holds the owner
    return {
        variable
        for node, scope in owners.items()
        if node not in wholes
        for variable in variables_holding(project.analysis, node, scope)
    }


def _seen(project: Project) -> set[Variable]:
    """Return the variables of the models that the training calls, and of what they hold."""
    analysis = project.analysis
    found = {model.variable for model in project.models}
    found |= {inner for model in project.models if model.is_container for inner in entries_of(analysis, model.variable)}
    return found | {inner for variable in found for inner in upstream(analysis, variable)}


def _is_part(project: Project, variable: Variable) -> bool:
    """Return whether something is a layer of a module, whose wrapper averages its gradients."""
    return variable.is_attribute and is_module(project.analysis, Instance(variable.scope))


def _is_given(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether something outside the project may run what a name holds: an argument, the object of a method."""
    outer = scope.source.parents[node]
    outer = scope.source.parents[outer] if isinstance(outer, (ast.keyword, ast.Starred)) else outer
    is_object = isinstance(outer, ast.Attribute) and outer.attr not in RUNS_NOTHING | CHILDREN | MODULES
    call = scope.source.parents[outer] if is_object else outer
    if not isinstance(call, ast.Call) or call.func is node or (is_object and call.func is not outer):
        return False
    if isinstance(scope.source.parents[call], ast.Expr) or project.analysis.called(call, scope) & ASKING:
        return False
    is_own = any(isinstance(value, OF_PROJECT) for value in project.analysis.evaluate(call.func, scope))
    return not is_own and has_gradients(project.analysis, scope, call)
