"""Data sets that are made at random in each epoch of a training, or after one: when each process has its own stream."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.stored import ScopedName, own_variable
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.randomness import SHUFFLES

from ...files.guards import runs_on_some
from ..next_calls import TRAIN
from ..seeds import draws
from ..shards import builders_of, places_given

if TYPE_CHECKING:
    from ... import Project

Place = tuple[ast.Call, Scope]
# Where an object is made, which is drawn as a whole, and what the workers of a loader run.
NOT_BETWEEN_EPOCHS = frozenset({"__init__", "__getitem__", "__iter__"})


def data_sets_drawn_again(project: Project) -> list[Place]:
    """Return the calls by which the samples of a training loader are drawn in the loops around the batches, or later.

    A second training, of data that is split then, comes after the first.
    """
    return project.analysis.fact("data sets drawn again", lambda: _find(project))


def _find(project: Project) -> list[Place]:
    drawn_from = [loop.iter for loop in project.batch_values.loops if isinstance(loop, ast.For)]  # once for all batches
    batches = project.nodes_in_batches - {part for node in drawn_from for part in walk(node)}
    run = [*project.in_loops, *_run_after(project)]
    again = {node: scope for node, scope in run if isinstance(node, ast.Call) and node not in batches}
    found: dict[ast.Call, Scope] = {}
    variables: set[ScopedName] = set()
    classes: set[Scope] = set()
    for node, scope in _computed(project):
        variable = own_variable(node, scope)
        variables |= {variable} if variable is not None else set()
        classes |= {value.scope for value in project.analysis.evaluate(node, scope) if isinstance(value, Instance)}
        if isinstance(node, ast.Call) and node in again and _draws(project.analysis, node, scope):
            found[node] = scope
    for node, scope in again.items():
        if _shuffles(project.analysis, node, scope, variables, classes):
            found[node] = scope
    classes = {base for kind in classes for base in project.analysis.classes.mro(kind)}
    runs = {node: _run_by_method(project.analysis, node, scope, classes) for node, scope in again.items()}
    inner = {part for parts in runs.values() for part in parts}
    busy = {path.frames[0].node for path in project.paths}
    busy |= {call.call for model in project.models for call in model.calls}
    for node, parts in runs.items():
        if not busy.isdisjoint(parts):
            continue  # a trainer that has the loader: an epoch does not draw samples again
        drawn = {part for part, scope in parts.items() if draws(project.analysis, part, scope)}
        if node not in inner and drawn - set(found):
            found = {call: scope for call, scope in found.items() if call not in drawn} | {node: again[node]}
    return [(node, scope) for node, scope in found.items() if not runs_on_some(project.analysis, scope, node)]


def _run_after(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield what runs after a training, in the functions on the way to it and in those that they call then."""
    calls: dict[ast.AST, Scope] = {}
    for frame in dict.fromkeys(frame for path in project.paths for frame in path.frames):
        end: int = (frame.loops[-1] if frame.loops else frame.node).end_lineno  # type: ignore[attr-defined]
        later = (node for node in own_nodes(frame.scope.node).of(ast.Call) if node.lineno > end)
        calls.update(dict.fromkeys(later, frame.scope))
    yield from nodes_run(project.analysis, calls.items())


def _computed(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the expressions that the data sets of the training loaders are computed from, and batches without one."""
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    made = dict.fromkeys(place for one in loaders for place in builders_of(project.analysis, one))
    places = [place for call in made for place in places_given(project.analysis, *call, "dataset")]
    if project.takes_ready_batches:
        ready = [use for loader in loaders if not loader.builders for use in loader.uses if use.role == TRAIN]
        places += [(use.expression, use.scope) for use in ready]
    for place in places:
        for origin in computed_from(project.analysis, *place, stored=True):
            if isinstance(origin.node, ast.expr):
                yield origin.node, origin.scope


def _draws(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call draws itself, or makes an object that does when it is made."""
    if draws(analysis, call, scope):
        return True
    is_made = any(isinstance(value, Instance) and value.call is call for value in analysis.evaluate(call, scope))
    return is_made and any(draws(analysis, *place) for place in calls_within(analysis, call, scope))


def _run_by_method(analysis: Analysis, call: ast.Call, scope: Scope, classes: set[Scope]) -> dict[ast.Call, Scope]:
    """Return the calls in a method of one of the classes that a call runs: `loader.dataset.resample()`."""
    methods = [function.scope for function in analysis.functions_called(call, scope)]
    if not any(_is_method(method, classes) for method in methods):
        return {}
    return {node: where for node, where in calls_within(analysis, call, scope) if node is not call}


def _is_method(function: Scope, classes: set[Scope]) -> bool:
    return function.parent in classes and getattr(function.node, "name", "") not in NOT_BETWEEN_EPOCHS


def _shuffles(
    analysis: Analysis, call: ast.Call, scope: Scope, variables: set[ScopedName], classes: set[Scope]
) -> bool:
    """Return whether a call brings one of the variables, or what an object of the classes has, into another order."""
    if not analysis.called(call, scope) & SHUFFLES or not call.args:
        return False
    variable = own_variable(call.args[0], scope)
    is_later = getattr(scope.node, "name", "") not in NOT_BETWEEN_EPOCHS
    return variable is not None and (variable in variables or (is_later and variable[0] in classes))
