"""Numbers of batches that divide what a pass over a training loader adds up: those of all batches, on every rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, is_followed, origins
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope, own_nodes

from ..data.loaders import TRAIN, Loader
from ..data.next_calls import Use
from ..losses.divisions import divided
from ..losses.writes import writes_of
from .whole_passes import whole_passes

if TYPE_CHECKING:
    from retrofit.training import Project

PASS = "pass"


def lengths_of_whole(project: Project) -> Iterator[tuple[ast.expr, Scope, bool]]:
    """Yield the training loaders whose lengths are asked for of a pass over all: `total / len(loader)`.

    The length of a rank's part is the number of the training's steps. Where more than a pass can use a length, only
    what it divides tells which one is meant: False where one number is meant for both.
    """
    trains_in = {frame.scope for path in project.paths for frame in path.frames}
    for loader in project.loaders if not project.distribution.is_by_hand else ():
        uses = _passes(project, loader)
        for call, scope in _lengths(project, loader, uses) if uses else ():
            is_apart = scope not in trains_in and any(use.scope is scope for use in uses)
            is_apart &= not _is_kept(scope.source.statement(call))
            own = _drawn_in(project, call, scope, uses)
            found = [own] if own else [_drawn_in(project, read, scope, uses) for read in _reads(call, scope)]
            if is_apart or any(PASS in one for one in found):
                yield call.args[0], scope, is_apart or all(one == {PASS} for one in found)


def _passes(project: Project, loader: Loader) -> list[Use]:
    """Return the passes over all samples of a training loader, split or not."""
    split = {evaluation.loop for evaluation in project.evaluations if not evaluation.reason}
    uses = loader.uses if TRAIN in loader.roles else []
    return [use for use in uses if use.loop in split or use.expression in whole_passes(project)]


def _lengths(project: Project, loader: Loader, uses: list[Use]) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that ask for the length of a loader, by its variable or by what a pass in the function names."""
    for call, scope in reached_calls(project.analysis):
        if last_name(call) == "len" and len(call.args) == 1:
            variables = variables_of(project.analysis, call.args[0], scope)
            names = {ast.unparse(use.expression) for use in uses if use.scope is scope}
            if loader.variable in variables or ast.unparse(call.args[0]) in names:
                yield call, scope


def _is_kept(statement: ast.stmt) -> bool:
    """Return whether a statement sets an attribute, which a training may read."""
    return isinstance(statement, ast.Assign) and any(isinstance(target, ast.Attribute) for target in statement.targets)


def _reads(call: ast.Call, scope: Scope) -> list[ast.expr]:
    """Return the reads of the only variable that a number, or what is computed from it, is assigned to."""
    statement = scope.source.statement(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name) or len(scope.bindings.get(target.id, [])) != 1:
        return []
    own = set(own_nodes(scope.node))
    names = (node for node in walk(scope.node) if isinstance(node, ast.Name) and node.id == target.id)
    # What a function inside reads is read at another time, as if by the statement that sets it.
    return [node if node in own else call for node in names if isinstance(node.ctx, ast.Load)]


def _drawn_in(project: Project, number: ast.expr, scope: Scope, uses: list[Use]) -> set[str]:
    """Return whether a number is read in one of some passes, or divides what comes from one: PASS, from TRAIN, both."""
    inside = {node for use in uses if use.loop is not None for node in walk(use.loop)}
    if number in inside:
        return {PASS}
    drawn = inside | {use.expression for use in uses}
    trained = project.nodes_in_batches - {*walk(scope.source.statement(number))}
    filled = {binding for use in uses for binding in _filled(use)}

    def before(origin: Origin) -> list[Origin]:
        is_end = origin.node in drawn or origin.node in trained
        return [] if is_end else [*inputs(project.analysis, origin, stored=True)]

    found: set[str] = set()
    for origin in origins(project.analysis, [Origin(_divided_by(project, number, scope), scope)], before):
        if origin.node in drawn or not filled.isdisjoint(_live(origin.node, origin.scope)):
            found.add(PASS)
        elif origin.node in trained:
            found.add(TRAIN)
    return found


def _filled(use: Use) -> Iterator[Binding]:
    """Yield what binds the variables that a pass changes in place: `total` of total.add_(x.mean())."""
    for node in walk(use.loop) if use.loop is not None else ():
        for place, _, _ in writes_of(node) if isinstance(node, ast.Call) else ():
            yield from _live(place, use.scope)


def _live(node: ast.AST, scope: Scope) -> list[Binding]:
    return live_bindings(node, scope)[1] if isinstance(node, ast.Name) and is_followed(node) else []


def _divided_by(project: Project, number: ast.expr, scope: Scope) -> ast.expr:
    """Return what a number divides, or the whole expression that it is in."""
    inner: ast.AST = number
    whole = number
    for outer in scope.source.ancestors(number):
        pair = divided(project.analysis, outer, scope)
        if pair is not None and pair[1] is inner and not isinstance(pair[0], ast.Constant):
            return pair[0]
        if isinstance(outer, ast.stmt):
            break
        inner = outer
        whole = outer if isinstance(outer, ast.expr) else whole
    return whole
