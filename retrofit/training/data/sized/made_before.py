"""Tensors that a training makes once, before its loops, and computes its loss of: labels, noise that is drawn again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.returned import returned
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_calls, reached_nodes
from retrofit.analysis.flow.sources import Origin
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import PARAMETER_CLASSES, REGISTER_BUFFER
from retrofit.training.torch_api.tensors import COPIED_ALONG, DRAWN, FILLED, NEW, REPEATS, TENSOR_CLASSES, VIEWS

if TYPE_CHECKING:
    from ... import Project

MADE = FILLED | DRAWN | NEW | TENSOR_CLASSES
REPEATED = VIEWS | REPEATS | COPIED_ALONG
NUMBERED = frozenset({"range"})  # [... for _ in range(batch_size)]
MAKES_ROWS = MADE | REPEATED | NUMBERED


def made_before(project: Project) -> Iterator[tuple[ast.Call | ast.BinOp, Scope, bool]]:
    """Yield what makes tensors of which a loss is computed, or that a model keeps, outside of the training loops.

    These are calls, and products of a list and a number; each with whether it is in a model, which an evaluation may
    run: of a criterion that only training steps call it is not.
    """
    inside = project.nodes_in_loops
    for made, scope in of_losses(project).items():
        if made not in inside and _makes_rows(made) and not _is_in_model(project.analysis, scope):
            yield made, scope, False  # type: ignore[misc]
    for node, scope in reached_nodes(project.analysis).of(ast.BinOp, ast.Call):
        if node not in inside and _makes_rows(node) and _is_in_model(project.analysis, scope):
            is_own = _is_of_criterion(project, scope) and not _keeps_state(project.analysis, scope)
            yield node, scope, not is_own  # type: ignore[misc]


def of_losses(project: Project) -> dict[ast.AST, Scope]:
    """Return what the training losses are computed from, with its scopes: not what else their models are called with.

    Pictures are made by the model that is trained, too, of noise that no loss has.
    """

    def step(origin: Origin) -> list[Origin]:
        node, scope = origin.node, origin.scope
        is_parameter = isinstance(node, ast.Call) and project.analysis.called(node, scope) & PARAMETER_CLASSES
        return [] if is_parameter else list(inputs(project.analysis, origin))

    def find() -> dict[ast.AST, Scope]:
        starts = [Origin(path.frames[0].node.func.value, path.frames[0].scope) for path in project.paths]  # type: ignore[attr-defined]
        found = (origin for start in starts for origin in returned(project.analysis, start, step))
        return {origin.node: origin.scope for origin in found}

    return project.analysis.fact("of losses", find)


def repeats_list(node: ast.AST) -> bool:
    """Return whether this is a list so many times: [0] * batch_size."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return is_product and any(isinstance(part, ast.List) for part in (node.left, node.right))  # type: ignore[attr-defined]


def _makes_rows(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return repeats_list(node)
    return isinstance(node, ast.Call) and last_name(node) in MAKES_ROWS


def _keeps_state(analysis: Analysis, scope: Scope) -> bool:
    """Return whether a method registers buffers or parameters, whose shape a checkpoint has."""
    calls = own_nodes(scope.node).of(ast.Call)
    return any(last_name(call) == REGISTER_BUFFER or analysis.called(call, scope) & PARAMETER_CLASSES for call in calls)


def _is_of_criterion(project: Project, scope: Scope) -> bool:
    """Return whether a scope is in a class of which objects are called in steps of the training, and nowhere else."""
    owner = scope.enclosing_class()

    def find() -> dict[Scope, list[tuple[ast.Call, Scope]]]:
        found: dict[Scope, list[tuple[ast.Call, Scope]]] = {}
        for call, where in reached_calls(project.analysis):
            values = project.analysis.evaluate(call.func, where)
            for each in [value for value in values if isinstance(value, Instance)]:
                found.setdefault(each.scope, []).append((call, where))
        return found

    calls = project.analysis.fact("calls of objects", find).get(owner, []) if owner is not None else []
    return bool(calls) and all(_is_in_step(project, *place) for place in calls)


def _is_in_step(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call is in a loop of the training, under no other condition than the gradients are."""
    around = set(scope.source.ancestors(call))
    for path in project.paths:
        loop, node = path.loops[0][0], path.frames[0].node
        outer = list(path.frames[0].scope.source.ancestors(node))
        if loop in around and loop in outer:
            between = outer[: outer.index(loop)]
            return all(part in around for part in between if isinstance(part, ast.If))
    return False


def _is_in_model(analysis: Analysis, scope: Scope) -> bool:
    """Return whether a scope is in a class that has a forward pass: its evaluation needs the size as it is."""
    outer: Scope | None = scope
    while outer is not None:
        if isinstance(outer.node, ast.ClassDef):
            return analysis.classes.method(outer, "forward") is not None
        outer = outer.parent
    return False
