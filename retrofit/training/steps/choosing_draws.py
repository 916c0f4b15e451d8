"""Draws of single numbers by which a training chooses what it does with a batch, and that all ranks can make together.

With one of its own a rank would train on its part of the batch in another way than the others, show other figures of
it, or wait where they do not come.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import holds_on_every_path
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import COMPREHENSIONS
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.randomness import DRAWS, SHUFFLES

from ..data.loaders import TRAIN
from ..data.random_draws import draws_in_loop
from ..distributed.ranks.from_main import is_from_main
from ..distributed.ranks.uneven_generators import generators_drawn_from, uneven_generators
from ..model.modules import is_module
from .drawn_choices import drawn_choices, onward, read, run_for_batches
from .draws_per_batch import follows_batch, given_to_draw
from .shared_branches import all_come_to

if TYPE_CHECKING:
    from .. import Project

Place = tuple[ast.Call, Scope]


def choosing_draws(project: Project) -> dict[ast.Call, Scope]:
    """Return the draws that random choices are made by; of a choice all of them or none."""
    return project.analysis.fact("draws of choices", lambda: _find(project))


def is_made_together(project: Project, test: ast.expr, scope: Scope) -> bool:
    """Return whether all ranks decide a test by the same draws, or will, once the conversion has made them so."""
    if is_from_main(project.analysis, test, scope):
        return True
    draws = [call for call, _ in _draws(project, test, scope)]
    return bool(draws) and all(call in choosing_draws(project) for call in draws)


def _find(project: Project) -> dict[ast.Call, Scope]:
    found: dict[ast.Call, Scope] = {}
    loops = {(loop, frame.scope) for path in project.paths for loop, frame in path.loops}
    for chosen, scope in drawn_choices(project):
        draws = [*_draws(project, chosen, scope)]
        if all(_is_common(project, *draw, loops) for draw in draws):
            found.update(draws)
    for node, scope in run_for_batches(project).of(ast.Call):  # an order of tasks, by which the step goes through them
        if project.analysis.called(node, scope) & SHUFFLES:
            found.update({node: scope} if _is_common(project, node, scope, loops) else {})
    return found


def _draws(project: Project, chosen: ast.expr, scope: Scope) -> Iterator[Place]:
    for origin in origins(project.analysis, [Origin(chosen, scope)], partial(onward, project)):
        for part in read(project, origin.node, origin.scope):
            if isinstance(part, ast.Call) and draws_in_loop(project, part, origin.scope):
                yield part, origin.scope


def _is_common(project: Project, call: ast.Call, scope: Scope, loops: Collection[tuple[ast.AST, Scope]]) -> bool:
    """Return whether all ranks make a draw, equally often, and for the batch as it is."""
    names = project.analysis.called(call, scope)
    made = generators_drawn_from(project, call, scope)
    if not names & DRAWS and not any(builder in uneven_generators(project) for builder, _ in made):
        return False  # in place, or of a generator of its own, which all ranks get from rank 0
    if any(follows_batch(project, given, scope) for given in given_to_draw(call)):
        return False

    uses = (use for loader in project.loaders for use in loader.uses if use.role != TRAIN)
    evaluating: set[ast.AST | None] = {*(m.loop for m in project.measurements), *(use.loop for use in uses)}

    def is_in_training(node: ast.AST, where: Scope) -> bool:
        return any((outer, where) in loops for outer in where.source.ancestors(node))

    if not holds_on_every_path(project.analysis, call, scope, is_in_training):
        return False  # an evaluation draws it too, on some ranks more often than on others
    chains = call_chains(project.analysis, call, scope)
    if any(outer in evaluating for place, where in chains for outer in where.source.ancestors(place)):
        return False
    around = [(part, where) for place, where in chains for part in _gone_through(place, where, loops)]
    if any(follows_batch(project, *place) for place in around):
        return False  # once for each of a rank's samples: for i in range(batch_size)
    inside = [where for place, where in chains if not is_in_training(place, where)]
    if any(_is_of_model(project, where) or _is_generator(where) for where in inside):
        return False
    return all_come_to(project, call, scope)


def _gone_through(node: ast.AST, scope: Scope, loops: Collection[tuple[ast.AST, Scope]]) -> Iterator[ast.expr]:
    """Yield what loops and comprehensions around a node in its function go through, those of the training left out."""
    for outer in scope.source.ancestors(node):
        if isinstance(outer, (ast.For, ast.AsyncFor)) and (outer, scope) not in loops:
            yield outer.iter
        elif isinstance(outer, COMPREHENSIONS):
            yield from (generator.iter for generator in outer.generators)


def _is_of_model(project: Project, scope: Scope) -> bool:
    """Return whether a function is a method of a model, which evaluations may call in ways that are not followed."""
    owner = scope.enclosing_class()
    is_trained_in = any(frame.scope is scope for path in project.paths for frame in path.frames)
    return owner is not None and not is_trained_in and is_module(project.analysis, Instance(owner))


def _is_generator(scope: Scope) -> bool:
    """Return whether a function gives values one after another, some of which one rank may not ask for."""
    return bool(own_nodes(scope.node).of(ast.Yield, ast.YieldFrom))
