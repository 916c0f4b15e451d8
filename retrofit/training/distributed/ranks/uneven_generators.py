"""Generators of a script from which one rank draws more numbers than another, so that theirs are different later.

All ranks have a generator with a seed in the same state, until numbers are drawn from it for the samples that a rank
has: noise in the shape of its part of a batch, the augmentation of a sample in the process itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.scopes import Scope, own_calls
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.randomness import GENERATORS, TORCH_GENERATORS

if TYPE_CHECKING:
    from retrofit.training import Project

Place = tuple[ast.Call, Scope]
READS_SAMPLES = ("__getitem__", "__getitems__", "__iter__")


def generators_drawn_from(project: Project, call: ast.Call, scope: Scope) -> list[Place]:
    """Return the calls that make the generator which a call draws from: rng.random(), torch.rand(1, generator=g)."""
    given, builders = argument_for(call, [], "generator"), TORCH_GENERATORS
    if given is None and isinstance(call.func, ast.Attribute):
        given, builders = call.func.value, GENERATORS
    made = [value for value in project.analysis.evaluate(given, scope) if isinstance(value, Result)]
    return [(value.call, value.scope) for value in made if value.builder in builders]


def uneven_generators(project: Project) -> set[ast.Call]:
    """Return the calls that make such a generator."""
    return project.analysis.fact("uneven generators", lambda: {call for call, _ in _find(project)})


def generators_of_rows(project: Project) -> Iterator[Place]:
    """Yield the calls that make a generator which a step draws from in the shape of its batch: one number per row."""
    from ...steps.draws_per_batch import follows_batch, given_to_draw

    for call, scope, made in _draws(project):
        if any(follows_batch(project, given, scope) for given in given_to_draw(call)):
            yield from made


def _draws(project: Project) -> Iterator[tuple[ast.Call, Scope, list[Place]]]:
    """Yield the draws of the steps, with the calls that make their generators."""
    for call, scope in dict.fromkeys((node, scope) for node, scope in project.in_batches.of(ast.Call)):
        if made := generators_drawn_from(project, call, scope):
            yield call, scope, made


def _find(project: Project) -> Iterator[Place]:
    from ...steps.mixed_by_libraries import collated

    yield from generators_of_rows(project)
    for call, scope, made in _draws(project):
        if project.batch_values.loops_around(call, scope) or not project.batch_values.is_settled(call, scope):
            yield from made
    for call, scope in (*_reading(project), *collated(project)):
        yield from generators_drawn_from(project, call, scope)


def _reading(project: Project) -> Iterator[Place]:
    """Yield the calls by which the training's data sets read a sample."""
    from ...data.random_draws import training_data_sets

    methods = (project.analysis.classes.method(o, name) for o in training_data_sets(project) for name in READS_SAMPLES)
    for method in (method for method in methods if method is not None):
        for call in own_calls(method.node):
            yield from calls_within(project.analysis, call, method.scope)
