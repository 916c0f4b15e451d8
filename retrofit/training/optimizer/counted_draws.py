"""Loops that draw so many batches by next() from what ends: for _ in range(size // batch_size): next(batches)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.runtime import OWN_BATCHES, SIZES_OF_RANKS

from ..data.loaders import TRAIN
from ..figures.counts.step_counts import COUNTING, counted_by_evaluations, number_at
from .loop_ends import has_loader_length, is_endless, range_end
from .schedules import single_process_sizes, sizes_of_steps

if TYPE_CHECKING:
    from .. import Project

    Place = tuple[ast.expr, Scope]

OF_RANKS = SIZES_OF_RANKS | {OWN_BATCHES}  # in a number that is made that of a rank
ENDS = ("StopIteration", "Exception")


def counted_draws(project: Project) -> list[Place]:
    """Return the numbers of batches that training loops draw, of which a rank has its part.

    Not numbers that follow the loader, or a batch size that is made that of all ranks, and not those of a loop that
    begins again where the batches end.
    """
    return project.analysis.fact("counted draws", lambda: list(dict.fromkeys(_find(project))))


def divided_by_draws(project: Project) -> Iterator[Place]:
    """Yield what figures of the training are divided by that is such a number of batches."""
    numbers = [part for place in counted_draws(project) for part, _ in project.ranks.origins(*place)]
    divisions = {part for number in numbers for part in walk(number) if isinstance(part, ast.BinOp)}
    batches = set(project.in_batches)
    for node, scope in reached_nodes(project.analysis).of(*COUNTING) if divisions else ():
        number = number_at(project, node, scope, batches)
        found = project.ranks.origins(number, scope) if number is not None else []
        if number is not None and any(part in divisions for origin, _ in found for part in walk(origin)):
            yield number, scope


def _find(project: Project) -> Iterator[Place]:
    for loop, scope, call, where in _draws(project):
        drawn = call.args[0]
        number = range_end(project, loop.iter, scope)
        if number is None or is_endless(project, drawn, where) or _begins_again(where, call):
            continue
        if _is_of_data(project, number, scope) and not _follows(project, number, scope):
            yield number, scope


def _draws(project: Project) -> Iterator[tuple[ast.For, Scope, ast.Call, Scope]]:
    """Yield the loops of a training, and the calls of next() that give them a batch of which each rank has its part."""
    scopes = {loop: frame.scope for path in project.paths for loop, frame in path.loops if isinstance(loop, ast.For)}
    uses = [use for loader in project.loaders for use in loader.uses if use.role == TRAIN]
    for use in uses:
        call = use.scope.source.parents.get(use.expression)
        if use.loop in scopes and isinstance(call, ast.Call) and _is_next(call):
            yield use.loop, scopes[use.loop], call, use.scope  # type: ignore[misc, index]
    for loop, scope in scopes.items() if project.draws.calls else ():
        for call in (part for part in walk(loop) if isinstance(part, ast.Call) and _is_next(part)):
            made = origins(project.analysis, [Origin(call.args[0], scope)])
            if any(origin.node in project.draws.calls for origin in made):
                yield loop, scope, call, scope


def _is_next(call: ast.Call) -> bool:
    """Return whether this is next(batches), without another value for the end."""
    return getattr(call.func, "id", "") == "next" and len(call.args) == 1


def _begins_again(scope: Scope, call: ast.AST) -> bool:
    """Return whether the end of the batches is caught around a draw, which then begins again."""
    handlers = [h for outer in scope.source.ancestors(call) if isinstance(outer, ast.Try) for h in outer.handlers]
    return any(handler.type is None or last_name(handler.type) in ENDS for handler in handlers)


def _follows(project: Project, number: ast.expr, scope: Scope) -> bool:
    """Return whether a number is that of a rank's batches already."""
    places = [(number, scope), *project.ranks.origins(number, scope)]
    calls = [(part, where) for node, where in places for part in walk(node) if isinstance(part, ast.Call)]
    if any(OF_RANKS & project.analysis.called(call, where) for call, where in calls):
        return True
    sizes = single_process_sizes(project, number, scope, sizes_of_steps(project), of_samples=True)
    is_made = bool(sizes) and counted_by_evaluations(project).isdisjoint(size for size, _ in sizes)
    return is_made or has_loader_length(project, number, scope)


def _is_of_data(project: Project, number: ast.expr, scope: Scope) -> bool:
    """Return whether a number is what something is divided into, as the samples into batches."""
    parts = (part for node, _ in project.ranks.origins(number, scope) for part in walk(node))
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.FloorDiv)) for part in parts)
