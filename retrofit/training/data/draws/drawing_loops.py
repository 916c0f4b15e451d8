"""The loops in each turn of which a training, or an evaluation, draws a batch itself and takes this rank's part."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import nearest_on_paths
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import OWN_SAMPLES

from ...loops import loops_around
from .whole import is_whole

if TYPE_CHECKING:
    from ... import Project


def is_split_by_map(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is map(rd.data.own_part, batches)."""
    if not isinstance(node, ast.Call) or not node.args or "map" not in analysis.called(node, scope):
        return False
    return bool(analysis.named(node.args[0], scope) & OWN_SAMPLES)


def drawing_loops(project: Project) -> set[ast.AST]:
    """Return the loops in each turn of which a batch is drawn and split, of a training or an evaluation."""

    def loop_of(node: ast.AST, scope: Scope) -> ast.AST | None:
        if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(scope.node)):
            return None  # a generator's batches are used in the loop that it is called for
        return next(loops_around(scope, node), None)

    def is_split(loop: ast.AST | None, scope: Scope) -> bool:
        return loop is not None and not (isinstance(loop, ast.For) and is_whole(project.analysis, loop.iter, scope))

    if not project.draws.split:
        return set()
    places = [
        found
        for place in calls_named(project.analysis, OWN_SAMPLES)
        for found in nearest_on_paths(project.analysis, *place, lambda node, scope: loop_of(node, scope) is not None)
    ]
    found = [(loop_of(*place), place[1]) for place in places if place is not None]
    return {loop for loop, scope in found if is_split(loop, scope)}  # type: ignore[misc]
