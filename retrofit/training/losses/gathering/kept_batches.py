"""Batches that a script composes, and that a step needs as they are: episodes of support and query samples."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.training.data.draws.ready_batches import order_of_batches
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import builders_of, places_given
from retrofit.training.torch_api.data import BATCH_SAMPLER
from retrofit.training.torch_api.runtime import KEEPS_BATCHES, TRAINING_SHARES
from retrofit.training.torch_api.tensors import COPIED_ALONG, REPEATS, VIEWS

from ..rows.rows_by_place import PLACES, taken_by_place
from .gathered import gathering_of_parts, reader_with
from .values import SIZE, SIZE_IN_ROWS, ValueReader

if TYPE_CHECKING:
    from retrofit.training import Project

REPEATED = REPEATS | COPIED_ALONG
CLASS_COUNTS = {"one_hot", "eye"}  # functions that are told how many classes there are


def keeps_batches(project: Project) -> bool:
    """Return whether each rank takes whole batches of those that the script composes, and no part of one.

    A step goes by the places of their samples, or compares these in a way by which the rows of several ranks cannot be
    put together. Where an option chooses a loader, batches of single samples are still split.
    """
    return project.analysis.fact("keeps batches", lambda: _keeps_batches(project))


def has_only_kept_batches(project: Project) -> bool:
    """Return whether each rank has whole batches, of whatever the training draws: no step has a part of one."""
    return keeps_batches(project) and all(_is_composed(project, each) for each in _trained(project))


def _keeps_batches(project: Project) -> bool:
    if project.distribution.is_by_hand or not any(_is_composed(project, each, any) for each in _trained(project)):
        return False
    if _is_said(project) or any(order_of_batches(project.analysis, path) for path in project.paths):
        return True
    found = gathering_of_parts(project)
    is_only = all(_is_composed(project, each) for each in _trained(project))
    if found.rows and not is_only:  # whole batches of several ranks are not to be put together
        return False
    reader = reader_with(project, found)
    is_counted = not found.rows and any(_counted_as_classes(project, reader))
    return bool(found.reasons) or is_counted or any(taken_by_place(project, reader))


def _trained(project: Project) -> list[Loader]:
    return [loader for loader in project.loaders if TRAIN in loader.roles]


def _counted_as_classes(project: Project, reader: ValueReader) -> Iterator[ast.Call]:
    """Yield where the number of samples is one of classes, with a sample, or several, of each class in a batch.

    As labels that repeat their places, `arange(way).repeat(5)`, and as another axis than the first: `view(-1, way)`.
    """
    for node, scope in project.in_batches.of(ast.Call):
        if last_name(node) not in VIEWS | REPEATED | CLASS_COUNTS:
            continue
        is_repeated = last_name(node) in REPEATED
        reshaped = [part for part in walk(node.func) if is_repeated and isinstance(part, ast.Call)]
        places = [part for part in (*reshaped, *node.args[:1]) if last_name(part) in PLACES]
        axes = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        axes += [part for shape in node.args[:1] if isinstance(shape, (ast.Tuple, ast.List)) for part in shape.elts[1:]]
        values = [reader.value(part, scope) for part in (*places, *axes)]
        if any(value.kind == SIZE or value.reason == SIZE_IN_ROWS for value in values):
            yield node


def _is_composed(project: Project, loader: Loader, of_builders: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Return whether the script says which samples a batch has: by a batch sampler, or as it makes the batches."""
    made = builders_of(project.analysis, loader)
    return of_builders(_has_own_batches(project, *place) for place in made) if made else project.takes_ready_batches


def _has_own_batches(project: Project, builder: ast.Call, scope: Scope) -> bool:
    given = places_given(project.analysis, builder, scope, "batch_sampler")
    given = [(node, where) for node, where in given if not isinstance(node, ast.Constant)]
    values = {value for place in given for value in project.analysis.evaluate(*place)}
    return bool(given) and not any(isinstance(v, Result) and v.builder == BATCH_SAMPLER for v in values)


def _is_said(project: Project) -> bool:
    """Return whether a converted script gives the runtime its loaders for whole batches."""
    calls = calls_named(project.analysis, TRAINING_SHARES)
    return any(keyword.arg == KEEPS_BATCHES for call, _ in calls for keyword in call.keywords)
