"""Batches that a script composes, and that a step needs as they are: episodes of support and query samples."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import builders_of, places_given
from retrofit.training.torch_api.data import BATCH_SAMPLER
from retrofit.training.torch_api.runtime import KEEPS_BATCHES, TRAINING_SHARES

from ..rows.rows_by_place import taken_by_place
from .gathered import gathering_of_parts, reader_with

if TYPE_CHECKING:
    from retrofit.training import Project


def keeps_batches(project: Project) -> bool:
    """Return whether each rank takes whole batches of the training, and no part of one.

    The script composes them, and a step goes by the places of their samples, or compares these in a way by which the
    rows of several ranks cannot be put together.
    """
    return project.analysis.fact("keeps batches", lambda: _keeps_batches(project))


def _keeps_batches(project: Project) -> bool:
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    if not loaders or project.distribution.is_by_hand or not all(_is_composed(project, each) for each in loaders):
        return False
    if _is_said(project):
        return True
    found = gathering_of_parts(project)
    reader = reader_with(project, found)
    return bool(found.reasons) or any(taken_by_place(project, reader))


def _is_composed(project: Project, loader: Loader) -> bool:
    """Return whether the script says which samples a batch has: by a batch sampler, or as it makes the batches."""
    made = builders_of(project.analysis, loader)
    return all(_has_own_batches(project, *place) for place in made) if made else project.takes_ready_batches


def _has_own_batches(project: Project, builder: ast.Call, scope: Scope) -> bool:
    given = places_given(project.analysis, builder, scope, "batch_sampler")
    given = [(node, where) for node, where in given if not isinstance(node, ast.Constant)]
    values = {value for place in given for value in project.analysis.evaluate(*place)}
    return bool(given) and not any(isinstance(v, Result) and v.builder == BATCH_SAMPLER for v in values)


def _is_said(project: Project) -> bool:
    """Return whether a converted script gives the runtime its loaders for whole batches."""
    calls = calls_named(project.analysis, TRAINING_SHARES)
    return any(keyword.arg == KEEPS_BATCHES for call, _ in calls for keyword in call.keywords)
