"""Batches of a loader that reach a training step by another way: kept by an earlier loop, or handed to a function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ...loops import Path
from ..batch_values import BATCH, BatchValues
from ..loaders import TRAIN, draws_from
from .slices.slices import range_of

if TYPE_CHECKING:
    from ... import Project


def has_batches(project: Project, path: Path) -> bool:
    """Return whether a loader gives a path its batches: in its own loops, or kept or handed on by another path."""
    if not project.loaders or draws_from(project.loaders, path):
        return bool(project.loaders)
    if not any(TRAIN in loader.roles for loader in project.loaders):
        return False  # no loader is sharded, so nothing that comes of one is a rank's own
    values = project.analysis.fact(
        "batches of loaders", lambda: BatchValues(project.analysis, project.loaders, project.models)
    )
    loop, outer = path.loops[0]
    frame = path.frames[0]
    start = Origin(frame.node.func.value, frame.scope)  # type: ignore[attr-defined]
    if isinstance(loop, ast.For) and not counts(project.analysis, loop, outer.scope):
        start = Origin(loop.iter, outer.scope)
    return _leads_to_batch(project.analysis, values, start)


def given_in_step(project: Project, origin: Origin) -> list[Origin]:
    """Return what an expression of a step is computed from.

    For a parameter that is what a step gives for it, where one does: an evaluation may call the same function.
    """
    found = list(inputs(project.analysis, origin))
    name = origin.node if isinstance(origin.node, ast.Name) and origin.node in project.nodes_in_batches else None
    bindings = (origin.scope.find(name.id) or (origin.scope, []))[1] if name is not None else []
    if not any(binding.kind == "parameter" for binding in bindings):
        return found
    return [part for part in found if part.node in project.nodes_in_batches] or found


def _leads_to_batch(analysis: Analysis, values: BatchValues, start: Origin) -> bool:
    """Return whether an expression is computed from what a loop draws from a loader, or has kept of that."""
    drawn = {loop.iter for loop in values.loops if isinstance(loop, ast.For)}
    for origin in origins(analysis, [start], lambda origin: list(inputs(analysis, origin))):
        if origin.node in drawn:
            return True
        if not isinstance(origin.node, (ast.Name, ast.Attribute)):
            continue
        kept = [(part.value, part.scope) for part in stored_in(analysis, origin.node, origin.scope)]
        kept += values.given_to_methods.get(last_name(origin.node), [])
        if any(BATCH in values.sources_of(*place) for place in kept):
            return True
    return False


def counts(analysis: Analysis, loop: ast.For, scope: Scope) -> bool:
    """Return whether a loop goes through numbers: range(n), tqdm(range(n)), trange(n), or a variable that is one."""
    return range_of(analysis, loop, scope) is not None
