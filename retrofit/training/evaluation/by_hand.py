"""Evaluations without a loader that draw random numbers: every rank runs all of each, and finds other figures."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import functions_reached, nodes_run
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction

from ..distributed.ranks.from_main import is_from_main
from ..loops import LOOPS
from .decisions import decides
from .draws import draws_in_evaluation
from .measurements import Known, name_in, users

if TYPE_CHECKING:
    from retrofit.training import Project


@dataclass(frozen=True)
class Drawn:
    """An evaluation that draws: a call, or a loop in the training's own function, and the decisions by its figures."""

    node: ast.Call | ast.For | ast.While
    scope: Scope
    decisions: tuple[tuple[ast.AST, Scope], ...]


def drawing_evaluations(project: Project) -> Iterator[Drawn]:
    """Yield the evaluations without a loader by whose figures the training decides, and that each rank draws for."""
    training = {frame.scope for path in project.paths for frame in path.frames}
    around = {loop for path in project.paths for loop, _ in path.loops}
    known: set[ast.AST] = {evaluation.loop for evaluation in project.evaluations}
    known |= {use.loop for loader in project.loaders for use in loader.uses if use.loop is not None} | around
    known |= {*project.draws.nodes, *project.draws.calls, *project.draws.orders}  # of which a rank has its own part
    busy = {scope.node for scope in training}
    for node, scope in project.in_loops:
        if scope not in training or not isinstance(node, (ast.Call, ast.For, ast.While)) or node in around:
            continue
        if isinstance(node, ast.Call) and not project.analysis.functions_called(node, scope):
            continue
        run = [*nodes_run(project.analysis, [(node, scope)])]
        if any(part in known for part, _ in run) or _reaches(project, node, scope, busy):
            continue
        if _is_drawn(project, node, scope, run):
            decisions = [place for place in _decisions(project, node, scope) if not _is_of_main(project, *place)]
            if decisions:
                yield Drawn(node, scope, tuple(dict.fromkeys(decisions)))


def _reaches(project: Project, node: ast.AST, scope: Scope, training: Collection[ast.AST]) -> bool:
    """Return whether a node runs the training, or a part of it."""
    calls = [(part, scope) for part in walk(node) if isinstance(part, ast.Call)]
    is_reached = any(function.node in training for function in functions_reached(project.analysis, calls))
    backward = {path.frames[0].node for path in project.paths}
    return is_reached or any(part in backward for part in walk(node))


def _is_drawn(
    project: Project, node: ast.Call | ast.For | ast.While, scope: Scope, run: Iterable[tuple[ast.AST, Scope]]
) -> bool:
    """Return whether this runs a model of the training, with random numbers."""
    models = {call.call for model in project.models for call in model.calls}
    running = [(part, where) for part, where in run if part in models]
    if not running or any(part is node for part, _ in running):
        return False
    if not isinstance(node, ast.Call):
        return draws_in_evaluation(project.analysis, node, scope)
    functions = project.analysis.functions_called(node, scope)
    return any(_draws(project, function, running) for function in functions)


def _draws(project: Project, function: LocalFunction, running: Sequence[tuple[ast.AST, Scope]]) -> bool:
    own = [part for part, where in running if where is function.scope]
    first = min(own, key=lambda part: part.lineno) if own else None  # type: ignore[attr-defined]
    return draws_in_evaluation(project.analysis, function.node, function.scope, first)


def _decisions(project: Project, node: ast.Call | ast.For | ast.While, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield the tests, and the steps of schedules, that are computed from what an evaluation gives."""
    statement = scope.source.statement(node)
    if isinstance(node, ast.Call) and isinstance(statement, (ast.If, ast.While, ast.Expr)):
        inside = statement if isinstance(statement, ast.Expr) else statement.test
        parts = [part for part in own_nodes(scope.node) if part in {statement, *walk(inside)}]
        given = Known(scope, frozenset({name_in(node.func)}))  # `if evaluate(model) > best`
        yield from ((part, scope) for part in parts if decides(project.analysis, project.paths, part, given))
        return
    targets = walk(node) if isinstance(node, LOOPS) else walk(statement)
    names = {name_in(part) for part in targets if isinstance(getattr(part, "ctx", None), ast.Store)} - {""}
    for known in users(project.analysis, scope, names):
        for part in own_nodes(known.scope.node):
            if decides(project.analysis, project.paths, part, known):
                yield part, known.scope


def _is_of_main(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether rank 0 decides for all already."""
    decided = node.test if isinstance(node, (ast.If, ast.While)) else node
    return is_from_main(project.analysis, decided, scope)
