"""Places that all ranks come to as often: there they can wait for each other."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.scopes import Scope

from ...data.loaders import loaders_in
from .rank_branches import rank_branches_of

if TYPE_CHECKING:
    from ... import Project


def is_come_to_by_all(project: Project, scope: Scope, node: ast.AST, place: ast.stmt | None = None) -> bool:
    """Return whether all ranks come to a node as often, as far as can be told; `place`: where they would wait."""
    place = place or scope.source.statement(node)
    branches = rank_branches_of(project)
    return not (
        any(isinstance(outer, ast.ExceptHandler) for outer in scope.source.ancestors(place))
        or _is_in_evaluation(project, scope, node)
        or branches.by_samples(scope, place)
        or branches.is_entered_by_some(scope)
    )


def _is_in_evaluation(project: Project, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node is in a loop over batches of which the ranks may have different numbers."""
    if node in project.nodes_in_batches:
        return False
    loops = [outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.For)]
    return any(loaders_in(project.analysis, loop.iter, scope) for loop in loops)
