"""Assignments that throw a wrapper away: the model inside it is put into the variable that training calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.stored import ScopedName
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ..loops import Frame
from .gradients import has_gradients
from .unwrapping import takes_out

if TYPE_CHECKING:
    from .. import Project


@dataclass(frozen=True)
class Discard:
    """An assignment after which a variable holds the model without its wrapper."""

    statement: ast.Assign
    scope: Scope
    target: ast.expr
    variable: ScopedName


def discards(project: Project) -> list[Discard]:
    """Return the assignments that throw a wrapper away before the variable is trained through."""
    return project.analysis.fact("discards", lambda: _find(project) if project.wrapping.sites else [])


def _find(project: Project) -> list[Discard]:
    assigned = [
        (node, scope, target)
        for node, scope in reached_nodes(project.analysis).of(ast.Assign)
        for target in _targets(node)
    ]
    wraps = [place for place in assigned if _wraps(project, place[0], place[1])]
    trained = _trained(project)
    found = []
    for statement, scope, target in assigned:
        variable = project.wrapping.variable(target, scope)
        if variable is None or variable not in trained or not takes_out(project.analysis, statement.value, scope):
            continue
        again = [place for place in wraps if project.wrapping.variable(place[2], place[1]) == variable]
        if not again and project.wrapping.wrapped(target, scope) is None:
            continue
        if _is_trained_after(project, statement, scope, [(node, where) for node, where, _ in again]):
            found.append(Discard(statement, scope, target, variable))
    return found


def _targets(statement: ast.Assign) -> Iterator[ast.expr]:
    """Yield the variables that an assignment gives its one value, or the first part of it: `model, start = f(...)`."""
    for target in statement.targets:
        if not isinstance(target, (ast.Tuple, ast.List)):
            yield target
        elif isinstance(statement.value, ast.Call) and target.elts:
            yield target.elts[0]


def _wraps(project: Project, statement: ast.Assign, scope: Scope) -> bool:
    calls = {site.call for site in project.wrapping.sites}
    holds_call = any(part in calls for part in walk(statement.value))
    return holds_call or project.wrapping.wrapped(statement.value, scope) is not None


def _trained(project: Project) -> set[ScopedName]:
    """Return the variables whose models the training calls with gradients."""
    calls = [(call.call, call.scope) for model in project.models for call in model.calls]
    calls += project.in_batches.of(ast.Call)
    return {
        (variable.scope, variable.name)
        for call, scope in calls
        if isinstance(call.func, (ast.Name, ast.Attribute)) and has_gradients(project.analysis, scope, call)
        for variable in variables_of(project.analysis, call.func, scope)
    }


def _is_trained_after(project: Project, statement: ast.stmt, scope: Scope, wraps: list[tuple[ast.stmt, Scope]]) -> bool:
    """Return whether a training follows a statement, in the code around it or around a call that leads to it.

    Not where the variable is wrapped again in between.
    """
    frames = [frame for path in project.paths for frame in path.frames]
    for place, where in _statements(project.analysis, statement, scope):
        again = [node for node, inner in wraps if inner is where and node is not statement]
        if any(_follows(frame, place, again) for frame in frames if frame.scope is where):
            return True
        if any(node.lineno > place.lineno for node in again):
            return False
    return False


def _follows(frame: Frame, place: ast.stmt, wraps: list[ast.stmt]) -> bool:
    """Return whether a way into the training can come after a place in the same function, without a wrap between."""
    start, line = place.lineno, frame.node.lineno  # type: ignore[attr-defined]
    if line > start and not _excludes(frame, place):
        return not any(start < wrap.lineno < line for wrap in wraps)
    around = set(frame.scope.source.ancestors(place))
    loop = next((loop for loop in frame.loops if loop in around), None)
    if loop is None:
        return False
    inside = [wrap.lineno for wrap in wraps if loop.lineno < wrap.lineno <= (loop.end_lineno or 0)]
    return not any(wrap > start or wrap < line for wrap in inside)


def _excludes(frame: Frame, place: ast.stmt) -> bool:
    """Return whether the two are in different branches of one `if`."""
    source, inner = frame.scope.source, place
    around = [frame.node, *source.ancestors(frame.node)]
    for outer in source.ancestors(place):
        if isinstance(outer, ast.If) and outer in around:
            branch = around[around.index(outer) - 1]
            return (inner in outer.body) != (branch in outer.body)
        inner = outer  # type: ignore[assignment]
    return False


def _statements(analysis: Analysis, statement: ast.stmt, scope: Scope) -> list[tuple[ast.stmt, Scope]]:
    """Return a statement and those that call the function around it, directly or through others."""
    chain = call_chains(analysis, statement, scope)
    return list(dict.fromkeys((where.source.statement(node), where) for node, where in chain))
