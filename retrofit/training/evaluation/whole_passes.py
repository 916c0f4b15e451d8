"""Passes over a training loader that do not train: every rank draws all of its batches, as one process does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes

from ..data.loaders import TRAIN
from ..data.next_calls import PEEK, Use
from ..data.shapes import is_about_shape
from ..data.shards import is_sharded
from ..files.guards import runs_on_one
from .training_passes import is_handed_on, keeps_for_training, may_step, steps

if TYPE_CHECKING:
    from retrofit.training import Project


def whole_passes(project: Project) -> dict[ast.expr, Use]:
    """Return what draws from a training loader, and is neither training nor an evaluation that is split, with its use.

    An evaluation that cannot be split, statistics of the training data, a first batch by which something is set.
    """
    return {use.expression: use for use, reason in _passes(project).items() if not reason}


def doubtful_passes(project: Project) -> list[tuple[Use, str]]:
    """Return the passes of which each process draws its own part, as they may be for a training, with why."""
    return [(use, reason) for use, reason in _passes(project).items() if reason]


def _passes(project: Project) -> dict[Use, str]:
    return project.analysis.fact("passes", lambda: {use: _doubt(project, use) for use in _untrained(project)})


def _doubt(project: Project, use: Use) -> str:
    """Return why a pass may be for a training, or nothing."""
    if steps(project, use):
        return "it steps or goes backward, by something that was not found as a training"
    if may_step(project, use):
        return "something that has an optimizer and is not read gets the batches"
    if is_handed_on(project, use):
        return "it hands the batches on, and a training may get them"
    return "a training may get what is kept of the batches" if keeps_for_training(project, use) else ""


def _untrained(project: Project) -> Iterator[Use]:
    if project.distribution.is_by_hand:
        return
    reached = known_scopes(project.analysis)
    trained = [use for loader in project.loaders for use in loader.uses if use.role == TRAIN]
    expressions = {use.expression for use in trained}
    loops = {use.loop for use in trained} | {loop for path in project.paths for loop, _ in path.loops}
    loops -= {None}
    loops |= {evaluation.loop for evaluation in project.evaluations if not evaluation.reason}
    for loader in project.loaders:
        if TRAIN not in loader.roles or is_sharded(project.ranks, loader):
            continue
        for use in loader.uses:
            if use.role == TRAIN or use.expression in expressions or use.scope not in reached:
                continue
            is_on_one = use.loop is not None and runs_on_one(project.analysis, use.scope, use.loop)
            is_shape = use.role == PEEK and _is_for_shapes(use.expression, use.scope)
            is_trained_with = is_handed_on(project, use) and keeps_for_training(project, use)
            if not (use.loop in loops or is_on_one or is_shape or is_trained_with or _is_passed_on(project, use)):
                yield use


def _is_passed_on(project: Project, use: Use) -> bool:
    """Return whether a function of the project gets the loader, and draws from it in a place of its own."""
    for outer in use.scope.source.ancestors(use.expression):
        if isinstance(outer, (ast.stmt, ast.comprehension)) or (
            isinstance(outer, ast.Call) and last_name(outer) == "next"
        ):
            return False
        if isinstance(outer, ast.Call) and project.analysis.functions_called(outer, use.scope):
            return True
    return False


def _is_for_shapes(node: ast.expr, scope: Scope) -> bool:
    """Return whether nothing but the shapes of a batch are asked for: next(iter(loader))[0].shape."""
    names: set[str] = set()
    for outer in scope.source.ancestors(node):
        if is_about_shape(outer):
            return True
        if isinstance(outer, ast.Assign):
            names = {part.id for target in outer.targets for part in walk(target) if isinstance(part, ast.Name)}
        if isinstance(outer, (ast.stmt, *FUNCTIONS)):
            break
    reads = [n for n in own_nodes(scope.node).of(ast.Name) if isinstance(n.ctx, ast.Load) and n.id in names]
    return bool(names) and all(_is_measured(read, scope) for read in reads)


def _is_measured(node: ast.expr, scope: Scope) -> bool:
    outer = scope.source.parents[node]
    while isinstance(outer, ast.Subscript):
        outer = scope.source.parents[outer]
    return is_about_shape(outer)
