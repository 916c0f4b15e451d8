"""Sharding of a loader's samples: by a sampler, by a data set that is cut by rank, or not possible for one sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for, returns_of
from retrofit.analysis.flow.assignments import assignments_to
from retrofit.analysis.flow.bindings import scope_of
from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Member, Result, Value, Values
from retrofit.training.torch_api.data import LOADER_PARAMETERS, SHARDING_SAMPLERS
from retrofit.training.torch_api.distributed import RANK
from retrofit.training.torch_api.runtime import LOADER_WORKERS, TRAINING_SHARES

from ..distributed.ranks.ranks import Ranks

if TYPE_CHECKING:
    from .loaders import Loader

MOST_WRAPPERS = 3  # data sets within one another


@answered_once
def builders_of(analysis: Analysis, loader: Loader) -> list[tuple[ast.Call, Scope]]:
    """Return the calls of DataLoader, or of a class derived from it, that can have made a loader, with their scopes."""
    given = (
        assignments_to(analysis, loader.variable) if loader.variable is not None and loader.variable.key is None else []
    )
    own_calls = {part for assignment in given if assignment.value for part in walk(assignment.value)}
    for assignment in given:
        values = analysis.evaluate(assignment.value, assignment.scope)
        own_calls |= {value.call for value in values if isinstance(value, (Result, Instance)) and value.call}
    # What draws from a loader may be handed others too; those that are put into its variable are its own.
    builders = [builder for builder in loader.builders if builder in own_calls] or loader.builders
    made = [(builder, scope_of(analysis, builder)) for builder in builders]
    own = [(builder, scope) for builder, scope in made if not analysis.called(builder, scope) & TRAINING_SHARES]
    return sorted(own, key=lambda place: place[1].source.place(place[0]))


def drops_last(analysis: Analysis, loader: Loader) -> bool:
    """Return whether all batches of a loader have the same size: its last one is left out where it has less."""
    built = builders_of(analysis, loader)
    return bool(built) and all(constant(call, "drop_last") is True for call, _ in built)


def given_to(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call of DataLoader gives for one of its first arguments."""
    return argument_for(call, LOADER_PARAMETERS, name)


def places_given(analysis: Analysis, builder: ast.Call, scope: Scope, name: str) -> list[tuple[ast.expr, Scope]]:
    """Return what a call of DataLoader can give for an argument, also in `*values` and `**options`, and where."""
    return arguments_given(analysis, builder, scope, LOADER_PARAMETERS, name)


def sampler_values(analysis: Analysis, builder: ast.Call, scope: Scope) -> Values:
    """Return what the sampler of a loader can be, also the one that a BatchSampler draws from."""
    found = {v for place in places_given(analysis, builder, scope, "sampler") for v in analysis.evaluate(*place)}
    batches = {
        v for place in places_given(analysis, builder, scope, "batch_sampler") for v in analysis.evaluate(*place)
    }
    for value in batches:
        if isinstance(value, (Result, Instance)) and value.call is not None:
            inner_scope = scope_of(analysis, value.call)
            found.add(value)
            for argument in [*value.call.args, *(keyword.value for keyword in value.call.keywords)]:
                found |= analysis.evaluate(argument, inner_scope)
    return frozenset(found)


def distributed_samplers(analysis: Analysis, loader: Loader) -> list[Result]:
    """Return the calls of torch's DistributedSampler that a loader can draw by."""
    values = {
        value for builder, scope in builders_of(analysis, loader) for value in sampler_values(analysis, builder, scope)
    }
    found = [value for value in values if isinstance(value, Result) and value.builder in SHARDING_SAMPLERS]
    return sorted(found, key=lambda value: value.call.lineno)


def is_sharded(ranks: Ranks, loader: Loader) -> bool:
    """Return whether each process draws other samples: by a sampler, or from a data set computed from its rank."""
    known: dict[tuple[ast.Call, Scope], bool] = ranks.analysis.fact("loaders cut by rank", dict)
    places = list(dict.fromkeys(builders_of(ranks.analysis, loader)))
    known.update({place: _is_cut(ranks, *place) for place in places if place not in known})
    return loader.is_split or any(known[place] for place in places)


def _is_cut(ranks: Ranks, builder: ast.Call, scope: Scope) -> bool:
    analysis = ranks.analysis
    for value in sampler_values(analysis, builder, scope):
        if isinstance(value, Instance) and analysis.classes.bases(value.scope) & SHARDING_SAMPLERS:
            return True
        if isinstance(value, Result) and value.builder in SHARDING_SAMPLERS:
            return True
    names = ("dataset", "sampler", "batch_sampler")
    given = (place for name in names for place in places_given(analysis, builder, scope, name))
    return any(RANK in ranks.sources_of(*place) for place in given)


def is_same(analysis: Analysis, one: tuple[ast.expr, Scope], other: tuple[ast.expr, Scope]) -> bool:
    """Return whether two expressions are the same option, variable or number, as far as can be told."""
    first, second = one[0], other[0]
    if isinstance(first, ast.Constant) and isinstance(second, ast.Constant):
        return first.value == second.value
    if not isinstance(first, (ast.Name, ast.Attribute)) or not isinstance(second, (ast.Name, ast.Attribute)):
        return False
    values = analysis.evaluate(first, one[1])
    if values:
        others = analysis.evaluate(second, other[1])
        are_handed_on = all(isinstance(value, Member) for value in values | others)  # settings.size of two scripts
        return values == others or (are_handed_on and bool(others) and (values <= others or others <= values))
    return one[1] is other[1] and ast.unparse(first) == ast.unparse(second)


def may_give(analysis: Analysis, call: ast.Call, scope: Scope, name: str) -> bool:
    """Return whether a call gives an argument by name, also in `**options` that may hold it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return True
        if keyword.arg is None:
            values = analysis.evaluate(keyword.value, scope)
            known = [value for value in values if isinstance(value, Result) and value.builder == LOADER_WORKERS]
            if not values or len(known) < len(values):
                return True
    return False


def constant(call: ast.Call, name: str, positions: list[str] | None = None) -> object:
    """Return the literal that a call gives for an argument, None where there is none."""
    given = argument_for(call, positions or [], name)
    return given.value if isinstance(given, ast.Constant) else None


def strides(analysis: Analysis, node: ast.expr | None, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the `range(...)` and `x[a:b:c]` that choose the samples of a data set."""
    starts = [(node, scope)] if node is not None else []
    for place, where in closure(starts, partial(_arguments, analysis)):
        if isinstance(place, ast.Subscript) and isinstance(place.slice, ast.Slice):
            yield place, where
        if isinstance(place, ast.Call) and "range" in analysis.called(place, where):
            yield place, where


def _arguments(analysis: Analysis, place: tuple[ast.expr, Scope]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the calls that an object is the result of, and what they are given."""
    for value in analysis.evaluate(*place):
        if isinstance(value, (Result, Instance)) and value.call is not None:
            where = scope_of(analysis, value.call)
            yield value.call, where
            yield from ((argument, where) for argument in value.call.args)


def single_samples(analysis: Analysis, loader: Loader) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield what makes a loader where all data sets that it can have are of one sample, as an image to learn is."""
    for builder, scope in builders_of(analysis, loader):
        places = places_given(analysis, builder, scope, "dataset")
        values = {value for place in places for value in analysis.evaluate(*place)}
        if values and all(_length(analysis, value, MOST_WRAPPERS) == 1 for value in values):
            yield builder, scope


def _length(analysis: Analysis, value: Value, depth: int) -> int | None:
    """Return how many samples a data set has where the script says that, None elsewhere."""
    method = analysis.classes.method(value.scope, "__len__") if isinstance(value, Instance) else None
    if method is None or not isinstance(method.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    found = {_number(analysis, part, method.scope, depth) for part in returns_of(method.node)}
    return found.pop() if len(found) == 1 else None


def _number(analysis: Analysis, node: ast.expr, scope: Scope, depth: int) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    is_length = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1
    if not is_length or depth == 0:
        return None
    found = {_length(analysis, inner, depth - 1) for inner in analysis.evaluate(node.args[0], scope)}  # type: ignore[attr-defined]
    return found.pop() if len(found) == 1 else None
