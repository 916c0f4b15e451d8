"""Branches that all processes have to take together: others wait for what is done in them, or for who has left."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Union

from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.torch_api.runtime import EVALUATION_SHARES

from ..data.batch_values import BATCH
from ..distributed.ranks.own_clocks import is_by_own_clock
from ..files.guards import runs_on_one, runs_on_some
from ..files.outputs import FOLDER, OPEN, SAVE, STORE, WRITE
from ..loops import LOOPS

if TYPE_CHECKING:
    from .. import Project

FILES = frozenset({FOLDER, OPEN, SAVE, STORE, WRITE})  # which rank 0 alone writes
Test = Union[ast.If, ast.While]


def concerns_all(project: Project, node: Test, scope: Scope) -> bool:
    """Return whether a branch leaves the training, measures or trains a model, or shows something of a batch."""
    if any(_is_of_batch(project, part, scope) for part in (*node.body, *node.orelse)):
        return True
    return leaves_or_trains(project, node, scope)


def leaves_or_trains(project: Project, node: Test, scope: Scope) -> bool:
    """Return whether a branch ends a loop or the program, or measures or trains a model."""
    written = {output.call for output in project.outputs if output.kind in FILES}
    block = [
        statement
        for statement in (*node.body, *node.orelse)
        if not (isinstance(statement, ast.Expr) and statement.value in written)
        and not all(runs_on_one(project.analysis, scope, part) for part in getattr(statement, "body", [statement]))
    ]
    in_loop = any(isinstance(outer, LOOPS) for outer in scope.source.ancestors(node))
    inside = [part for statement in block for part in walk(statement)]
    if any(isinstance(part, ast.Break) or (in_loop and isinstance(part, ast.Return)) for part in inside):
        return True
    calls = [part for part in inside if isinstance(part, ast.Call)]
    if any(project.analysis.called(call, scope) & EXITS for call in calls):
        return True
    shared: set[ast.AST] = {measurement.loop for measurement in project.measurements}
    shared |= {frame.node for path in project.paths for frame in path.frames}
    return any(part in shared for part, _ in nodes_run(project.analysis, [(part, scope) for part in block]))


def all_come_to(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether all processes come to a node, equally often: nothing that one of them knows decides about it."""
    if runs_on_some(project.analysis, scope, node) or not project.batch_values.is_settled(node, scope):
        return False
    if project.batch_values.loops_around(node, scope):
        return False  # once for each sample of a batch, of which one rank may have more than another
    outer = [loop.iter for loop in scope.source.ancestors(node) if isinstance(loop, ast.For)]
    drawn = [call for iterable in outer for call in walk(iterable) if isinstance(call, ast.Call)]
    if any(project.analysis.called(call, scope) & EVALUATION_SHARES for call in drawn):
        return False
    earlier = (p for p in own_nodes(scope.node).of(ast.If) if p.lineno < node.lineno and p is not node)  # type: ignore[attr-defined]
    leaving = [part for part in earlier if any(isinstance(inner, ast.Return) for inner in part.body)]
    return not any(
        project.batch_values.sources_of(part.test, scope) or is_by_own_clock(project.analysis, part.test, scope)
        for part in leaving
    )


def _is_of_batch(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement uses something that is computed from a batch of the training."""
    names = (part for part in walk(statement) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return any(BATCH in project.batch_values.sources_of(name, scope) for name in names)
