"""Edits by which the runtime shards a training loader, where it is made or where it is drawn from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from retrofit.analysis.edits import Edit, insert_after, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.variables import Assignment, assignments_to
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import Rule
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.drawn import is_view
from retrofit.training.data.loaders import EVALUATION, TRAIN, Loader
from retrofit.training.placement import after_variable


def shard_by_runtime(project: Project, loader: Loader, rule: Rule, message: str) -> Finding:
    """Return the finding of a rule that hands a training loader to rd.distribute_loader, or refuses it."""
    use = next(use for use in loader.uses if use.role == TRAIN)
    if loader.variable is None:
        edits = _around(use.scope.source, use.expression)
        return found(rule, use.scope.source, use.expression, message, edits)
    inside = list(_made_inside(project, loader))
    if inside:
        edits = [edit for builder, scope in inside for edit in _around(scope.source, builder)]
        return found(rule, inside[0][1].source, inside[0][0], message, edits)
    place = after_variable(project.analysis, loader.variable, project.paths, partial(_is_view, project))
    if place is None:
        refusal = f"{loader.variable} is set in several places, so none comes after all of them"
        kind = "loader-in-several-places"
        return found(rule, use.scope.source, use.expression, message, refusal=refusal, kind=kind)
    source, statement = place
    line = f"{loader.variable} = rd.distribute_loader({loader.variable})"
    others = [use for use in loader.uses if use.role == EVALUATION]
    if others:
        message += f"; {loader.variable} is also read at {others[0].scope.source.place(others[0].expression)}"
    return found(rule, source, statement, message, [insert_after(source, statement, [line])])


def _is_view(project: Project, assignment: Assignment) -> bool:
    """Return whether a variable gets a view of a loader: `loader = tqdm(loader)`."""
    return is_view(project.analysis, assignment.value, assignment.scope)


def _made_inside(project: Project, loader: Loader) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that make what a variable holds something else of: `batches = iter(DataLoader(...))`."""
    assert loader.variable is not None
    for assignment in assignments_to(project.analysis, loader.variable):
        if isinstance(assignment.value, ast.Call) and assignment.value not in loader.builders:
            given = {part for argument in assignment.value.args for part in ast.walk(argument)}
            yield from ((builder, assignment.scope) for builder in loader.builders if builder in given)


def _around(source: Source, loader: ast.expr) -> list[Edit]:
    return surround(source, loader, "rd.distribute_loader(", ")")
