"""Evaluations by a generator, or a function, which takes a rank's part of the batches in the training."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import WHOLE_BATCHES

from ...loops import Frame, calls_without_training, loops_around
from ...model.gradients import enters_evaluation
from .draw import PARTS, SLICE, Draw

if TYPE_CHECKING:
    from ... import Project

Place = tuple[ast.expr, Scope]
Calls = dict[ast.Call, Scope]


def evaluated_whole(
    project: Project, drawn: list[tuple[ast.expr, Scope]], followed: Collection[ast.AST]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of generators with these draws that a loop goes through which does not train.

    `followed` is what the losses are computed from; where the model is in evaluation mode that decides nothing.
    """
    training = {loop for path in project.paths for loop, _ in path.loops}
    trains = {frame.scope for path in project.paths for frame in path.frames}
    for place in drawn:
        if not _is_generator(place[1]):
            continue
        for call, scope in call_chains(project.analysis, *place):
            if not isinstance(call, ast.Call) or call is place[0] or _is_generator(scope):
                continue
            if not gives_batches(project.analysis, call, scope):
                continue
            loop = _loop(call, scope)
            is_followed = call in followed and not enters_evaluation(Frame(scope, call, ()))
            draws = list(_drawn_by_next(project.analysis, call)) if loop is None else []
            is_for_evaluation = bool(draws) and all(d.scope not in trains and enters_evaluation(d) for d in draws)
            if is_for_evaluation or (loop not in {None, *training} and not is_followed):
                yield call, scope


def kept_whole(
    project: Project, batches: dict[ast.expr, Draw], drawn: list[Place], followed: Collection[ast.AST]
) -> tuple[dict[ast.expr, Draw], Calls, Calls]:
    """Return the batches of a training without the sizes of evaluations, the calls of these that can be kept whole.

    Then the other calls, next to which a size of the batch is read that may be the training's. `drawn`: all draws.
    """
    in_order = [place for place in drawn if place[0] in batches and batches[place[0]].kind in (SLICE, PARTS)]
    calls = dict(_evaluated_in_part(project, in_order, followed))
    loops: set[ast.AST | None] = {next(loops_around(scope, call), None) for call, scope in calls.items()}
    silent = dict(_run_without_training(project, drawn))
    only, both = _given_to(project, silent)
    calls |= silent
    training = {loop for path in project.paths for loop, _ in path.loops}
    kept, mixed = {}, set()
    for node, draw in batches.items():
        around = {size: set(scope.source.ancestors(size)) for size, scope in draw.sizes}
        sizes = [(size, s) for size, s in draw.sizes if size not in only and loops.isdisjoint(around[size])]
        mixed |= {s for size, s in sizes if size in both}
        mixed |= {s for size, s in sizes if size not in project.nodes_in_batches and around[size].isdisjoint(training)}
        kept[node] = replace(draw, sizes=tuple(sizes))
    unclear = {call: scope for call, scope in calls.items() if scope in mixed}
    return kept, {call: scope for call, scope in calls.items() if call not in unclear}, unclear


def _run_without_training(project: Project, drawn: list[Place]) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that evaluate, of functions with these draws that train in other calls: `run(x, train=False)`."""
    silent = calls_without_training(project.analysis, project.paths)
    for place in drawn:
        for call, scope in call_chains(project.analysis, *place):
            if isinstance(call, ast.Call) and call in silent:
                yield call, scope


def _given_to(project: Project, silent: Calls) -> tuple[set[ast.AST], set[ast.AST]]:
    """Return what only these calls are given, and what they and other calls of the same functions are."""

    def given(call: ast.Call, scope: Scope) -> set[ast.AST]:
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        return {origin.node for part in parts for origin in computed_from(project.analysis, part, scope)}

    of_silent = {node for place in silent.items() for node in given(*place)}
    functions = {function for place in silent.items() for function in project.analysis.functions_called(*place)}
    sites = [site for function in functions for site in project.analysis.callers(function.node)]
    of_others = {node for site in sites if site.call not in silent for node in given(site.call, site.scope)}
    return of_silent - of_others, of_silent & of_others


def _evaluated_in_part(
    project: Project, drawn: list[Place], followed: Collection[ast.AST]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of functions with these draws in a loop that does not train: `get_batch(tests, i)`.

    A rank would evaluate a part of each batch there, and the script adds up what it sees.
    """
    training = {loop for path in project.paths for loop, _ in path.loops}
    for place in drawn:
        if not isinstance(place[1].node, FUNCTIONS) or _is_generator(place[1]):
            continue
        known: set[ast.AST] = set()  # calls that are whole, or run one that is
        for call, scope in call_chains(project.analysis, *place):
            if not isinstance(call, ast.Call) or call is place[0] or call in followed:
                continue
            functions = project.analysis.functions_called(call, scope)
            if not known.isdisjoint(part for function in functions for part in own_nodes(function.node)):
                known.add(call)
            elif next(loops_around(scope, call), None) not in {None, *training}:
                known.add(call)
                yield call, scope


def is_whole(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether what a loop goes through has batches that every rank uses whole."""
    calls = (part for part in walk(node) if isinstance(part, ast.Call))
    return any(WHOLE_BATCHES in analysis.called(call, scope) for call in calls)


def gives_batches(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call is of a generator, which gives one batch after another."""
    return any(_is_generator(function.scope) for function in analysis.functions_called(call, scope))


def _is_generator(scope: Scope) -> bool:
    yields = (ast.Yield, ast.YieldFrom)
    return isinstance(scope.node, FUNCTIONS) and any(isinstance(part, yields) for part in own_nodes(scope.node))


def _loop(call: ast.Call, scope: Scope) -> ast.AST | None:
    """Return the loop whose turns a call gives, None where it is elsewhere."""
    node: ast.AST = call
    for outer in scope.source.ancestors(call):
        if isinstance(outer, (ast.For, ast.comprehension)):
            return outer if outer.iter is node else None
        if not isinstance(outer, ast.Call):
            return None
        node = outer
    return None


def _drawn_by_next(analysis: Analysis, made: ast.Call) -> Iterator[Frame]:
    """Yield the calls of next() that draw from what a call gives: `batches = get(tests)`, `next(batches)`."""
    for node, scope in calls_named(analysis, {"next"}):
        if node.args and any(part.node is made for part in origins(analysis, [Origin(node.args[0], scope)])):
            yield Frame(scope, node, ())
