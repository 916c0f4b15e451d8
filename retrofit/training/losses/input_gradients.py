"""Gradients of a mean over the batch with respect to its samples: those of attacks, of inputs that are optimized.

The gradient of a sample is divided by the number of samples, of which a rank has a part of those of one process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite, argument_for
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_calls, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result, Value
from retrofit.training.data.batch_values import BATCH
from retrofit.training.torch_api.modules import GRADIENT_FUNCTIONS
from retrofit.training.torch_api.optimizers import ADAPTIVE
from retrofit.training.torch_api.runtime import PART_OF_MEAN
from retrofit.training.torch_api.tensors import WITHOUT_HISTORY

from .reductions import kinds
from .reductions.reduction import loss_kind
from .reductions.scale_free import is_scale_free

if TYPE_CHECKING:
    from retrofit.training import Project


@dataclass(frozen=True)
class InputGradient:
    """A loss whose gradient with respect to samples is used with its scale.

    `is_alone`: its gradients with respect to weights are not used.
    """

    node: ast.AST  # the call that computes the gradient
    loss: ast.expr
    scope: Scope
    is_alone: bool


def input_gradients(project: Project) -> Iterator[InputGradient]:
    """Yield the means over a batch whose gradients with respect to its samples are used with their scale."""
    for node, scope in project.in_batches:
        if not isinstance(node, ast.Call):
            continue
        if project.analysis.called(node, scope) & GRADIENT_FUNCTIONS:
            outputs, given = (argument_for(node, ["outputs", "inputs"], name) for name in ("outputs", "inputs"))
            read: list[ast.expr] = [node] if given is not None and _is_of_samples(project, given, scope) else []
        else:
            is_backward = isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
            outputs = node.func.value if is_backward else None  # type: ignore[attr-defined]
            read = _read_after(project, outputs, scope) if outputs is not None else []
        if outputs is not None and read and _is_mean(project, outputs, scope) and not is_scale_free(read, scope):
            is_alone = node in read or _is_emptied_after(project, node, scope)
            yield InputGradient(node, outputs, scope, is_alone)


def _is_mean(project: Project, node: ast.expr, scope: Scope) -> bool:
    if any(isinstance(part, ast.Call) and PART_OF_MEAN in project.analysis.called(part, scope) for part in walk(node)):
        return False  # it is that of one process already
    parts = loss_kind(project, node, scope).parts
    return kinds.MEAN in parts and not parts & {kinds.SUM, kinds.GLOBAL, kinds.UNKNOWN}


def _is_of_samples(project: Project, node: ast.expr, scope: Scope) -> bool:
    return BATCH in project.batch_values.sources_of(node, scope)


def _read_after(project: Project, loss: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return where the gradients of samples are read, of those that a loss is computed from: `delta.grad`.

    Or, where an optimizer of them makes a step by its size, the call of this step.
    """
    if not isinstance(loss, (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp)):
        return []
    names = {part.id for node in _with_history(project.analysis, loss, scope) for part in walk(node) if _is_name(part)}  # type: ignore[attr-defined]
    nodes = [node for node in own_nodes(scope.node) if isinstance(node, ast.expr)]
    read = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.ctx, ast.Load)
        and getattr(node.value, "id", "") in names
        and _is_of_samples(project, node.value, scope)
    ]
    return [*read, *_steps_of(project, names, scope)]


def _steps_of(project: Project, names: set[str], scope: Scope) -> Iterator[ast.expr]:
    """Yield the steps of optimizers of samples under these names, but for those whose steps are as large for any."""
    calls = own_calls(scope.node)
    made: set[Value] = set()
    for call in calls:
        given = getattr(argument_for(call, ["params"], "params"), "elts", [])
        is_own = bool(given) and all(getattr(p, "id", "") in names and _is_of_samples(project, p, scope) for p in given)
        if is_own and not project.analysis.called(call, scope) & ADAPTIVE:
            made |= project.analysis.evaluate(call, scope)
    for call in calls if made else ():
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        if is_step and made & project.analysis.evaluate(call.func.value, scope):  # type: ignore[attr-defined]
            yield call


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _with_history(analysis: Analysis, loss: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a loss of a function is computed from there, with a gradient."""

    def onward(origin: Origin) -> list[Origin]:
        node = origin.node.func if isinstance(origin.node, ast.Call) else origin.node
        if isinstance(node, ast.Attribute) and node.attr in WITHOUT_HISTORY | {"grad", "data"}:
            return []
        return [found for found in inputs(analysis, origin) if found.scope is scope]

    for origin in origins(analysis, [Origin(loss, scope)], onward):
        if isinstance(origin.node, ast.Name):
            yield origin.node


def _is_emptied_after(project: Project, backward: ast.Call, scope: Scope) -> bool:
    """Return whether the gradients of the weights are emptied before the next step: by a zero_grad() further down."""
    places = [(backward, scope), *((site.call, site.scope) for site in _sites(project.analysis, scope))]
    for node, where in places:
        own = {other for other in walk(where.source.statement(node))}
        for call in own_calls(where.node):
            is_empty = isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" and call not in own
            if is_empty and call.lineno > node.lineno and not _is_of_tensors(project.analysis, call, where):
                return True
    return False


def _sites(analysis: Analysis, scope: Scope) -> list[CallSite]:
    return analysis.callers(scope.node) if scope.is_function else []  # type: ignore[arg-type]


def _is_of_tensors(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether an optimizer that is emptied has tensors of its own: Adam([delta])."""
    values = analysis.evaluate(call.func.value, scope)  # type: ignore[attr-defined]
    given = [argument_for(value.call, ["params"], "params") for value in values if isinstance(value, Result)]
    return any(isinstance(part, (ast.List, ast.Tuple)) and part.elts for part in given)
