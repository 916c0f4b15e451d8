"""Random numbers that a training draws for its samples, by the stream that they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.reachability import calls_within, names_called
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import DROPOUT
from retrofit.training.torch_api.randomness import (
    DRAWS,
    DRAWS_IN_PLACE,
    RANDOM_TRANSFORMS,
    SEEDS,
    SYSTEM_DRAWS,
    TORCH,
    TORCH_DRAWS,
    TORCH_GENERATORS,
    TRANSFORMS,
)

from ..distributed.ranks.uneven_generators import generators_drawn_from, generators_of_rows, uneven_generators
from ..launch.arguments import default_of_option
from ..model.layers import calls_of, model_of
from . import seeds
from .loaders import TRAIN
from .shards import builders_of, given_to, places_given

if TYPE_CHECKING:
    from .. import Project

Place = tuple[ast.Call, Scope]
ALL_DRAWS = DRAWS | SYSTEM_DRAWS


def worker_streams(project: Project) -> set[str]:
    """Return the streams that reading the training's samples draws from, where nothing else seeds the workers."""
    loaders = [place for place in _training_loaders(project) if not _seeds_workers(project, *place)]
    found = {stream for scope in datasets(project, loaders) for stream in _streams(project, scope)}
    return found | ({TORCH} if loaders and _has_transforms(project) else set())


def own_streams(project: Project) -> set[str]:
    """Return the streams that the process itself draws from for its samples: without workers, in the loop, in layers.

    Scalars of `random` and numpy in the loop do not count: a size of all images has to be the same on all ranks.
    """
    inside = [place for place in _training_loaders(project) if _has_no_workers(project, *place)]
    found = {stream for scope in datasets(project, inside) for stream in _streams(project, scope)}
    calls = project.in_batches.of(ast.Call)
    if any(_draws_tensor(project, *place) for place in calls) or _has_dropout(project):
        found.add(TORCH)
    return found


def seeds_in_workers(project: Project) -> Iterator[tuple[ast.Call, Scope, set[str]]]:
    """Yield the calls by which the training's loaders seed their workers, with the streams of their samples."""
    for builder, scope in _training_loaders(project):
        drawn = {stream for where in datasets(project, [(builder, scope)]) for stream in _streams(project, where)}
        for given, where in places_given(project.analysis, builder, scope, "worker_init_fn"):
            call = ast.Call(given, [], [])
            for function in project.analysis.functions_called(call, where):
                nodes = [function.node.body] if isinstance(function.node, ast.Lambda) else own_nodes(function.node)
                for node in nodes:
                    if isinstance(node, ast.Call):
                        streams = {SEEDS[n] for n in project.analysis.called(node, function.scope) & SEEDS.keys()}
                        if streams & drawn and node.args:
                            yield node, function.scope, streams


def draws_in_loop(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call draws random numbers in the training loops: every rank has others there.

    A generator without a seed gives other numbers to every rank everywhere, one with a seed the same ones, unless ranks
    draw more or fewer of them for their samples.
    """
    if builders := generators_drawn_from(project, call, scope):
        is_own = any(_is_own_stream(project, *builder) for builder in builders)
        return is_own or any(builder in uneven_generators(project) for builder, _ in builders)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    is_draw = method in DRAWS_IN_PLACE or bool(project.analysis.called(call, scope) & ALL_DRAWS)
    return is_draw and call in _calls_in_loops(project) and argument_for(call, [], "generator") is None


def shared_generators(project: Project) -> Iterator[Place]:
    """Yield the calls that make a generator with a seed by which all ranks draw the same numbers for their samples."""
    for builder, scope in dict.fromkeys(generators_of_rows(project)):
        if not _is_own_stream(project, builder, scope):
            yield builder, scope


def is_drawn(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is computed from what the training loops draw at random."""
    return any(
        isinstance(part, ast.Call) and draws_in_loop(project, part, where)
        for origin, where in project.ranks.origins(node, scope)
        for part in walk(origin)
    )


def _is_own_stream(project: Project, builder: ast.Call, scope: Scope) -> bool:
    is_of_torch = bool(project.analysis.called(builder, scope) & TORCH_GENERATORS)  # they begin where all others do
    is_given = last_name(builder) == "manual_seed" if is_of_torch else bool(builder.args or builder.keywords)
    return seeds.is_drawn(project.analysis, builder, scope, shared=True) if is_given else not is_of_torch


def _calls_in_loops(project: Project) -> set[ast.AST]:
    def find() -> set[ast.AST]:
        return {node for node, _ in project.in_loops.of(ast.Call)}

    return project.analysis.fact("calls in training loops", find)


def training_data_sets(project: Project) -> set[Scope]:
    """Return the project's own classes of the data sets that the training's loaders read."""
    return datasets(project, _training_loaders(project))


def datasets(project: Project, loaders: list[Place]) -> set[Scope]:
    """Return the project's own classes of which the data sets of some loaders are made."""
    classes: set[Scope] = set()
    for builder, scope in loaders:
        dataset = given_to(builder, "dataset")
        for node, where in project.ranks.origins(dataset, scope) if dataset else ():
            values = project.analysis.evaluate(node, where)
            classes |= {value.scope for value in values if isinstance(value, Instance)}
    return classes


def _training_loaders(project: Project) -> list[Place]:
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    return list(dict.fromkeys(place for loader in loaders for place in builders_of(project.analysis, loader)))


def _seeds_workers(project: Project, builder: ast.Call, scope: Scope) -> bool:
    names = ("worker_init_fn", "generator")
    return any(places_given(project.analysis, builder, scope, name) for name in names)


def _has_no_workers(project: Project, builder: ast.Call, scope: Scope) -> bool:
    """Return whether a loader reads in the process itself, unless the command line says otherwise."""
    positions = ["dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"]
    given = argument_for(builder, positions, "num_workers")
    if given is None:
        options = [k for k in builder.keywords if k.arg is None]
        return not options
    if isinstance(given, ast.Constant):
        return given.value == 0
    default = default_of_option(project.analysis, given, scope)
    return default is not None and getattr(default[0], "value", None) == 0


def _streams(project: Project, class_scope: Scope) -> Iterator[str]:
    """Yield the streams that reading a sample draws from, unless it draws by a generator of its own."""
    for method in ("__getitem__", "__iter__"):
        function = project.analysis.classes.method(class_scope, method)
        if function is None:
            continue
        first = own_nodes(function.node).of(ast.Call)
        calls = [place for call in first for place in calls_within(project.analysis, call, function.scope)]
        names = [(call, name) for call, scope in calls for name in project.analysis.called(call, scope)]
        seeded = {SEEDS[name] for _, name in names if name in SEEDS}  # by the number of the sample, perhaps
        for call, name in names:
            stream = name.rpartition(".")[0]
            if name in DRAWS and stream not in seeded and argument_for(call, [], "generator") is None:
                yield stream


def _has_transforms(project: Project) -> bool:
    """Return whether the training's samples are changed at random by torchvision."""
    return any(
        name.startswith(TRANSFORMS) and name.rpartition(".")[2].startswith(RANDOM_TRANSFORMS)
        for name in names_called(project.analysis)
    )


def _draws_tensor(project: Project, call: ast.Call, scope: Scope) -> bool:
    return bool(project.analysis.called(call, scope) & TORCH_DRAWS) and argument_for(call, [], "generator") is None


def _has_dropout(project: Project) -> bool:
    """Return whether a model that is wrapped by hand has layers of dropout."""
    for site in project.wrapping.sites:
        for call, scope in calls_of(project.analysis, model_of(site), site.scope):
            if project.analysis.called(call, scope) & DROPOUT:
                rate = argument_for(call, ["p"], "p")
                if not isinstance(rate, ast.Constant) or rate.value:
                    return True
    return False
