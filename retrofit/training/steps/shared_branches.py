"""Branches that all processes have to take together: others wait for what is done in them, or for who has left."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Union

from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope

from ..data.batch_values import BATCH
from ..files.guards import runs_on_one
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


def _is_of_batch(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement uses something that is computed from a batch of the training."""
    names = (part for part in walk(statement) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return any(BATCH in project.batch_values.sources_of(name, scope) for name in names)
