"""Loops that make a step for each entry of a batch of a loader, of which processes may have different numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope

from ..data.batches import layers
from ..model.gradients import takes_step

if TYPE_CHECKING:
    from .. import Project


def steps_in_batches(project: Project) -> Iterator[tuple[ast.For, ast.Name, Scope]]:
    """Yield the loops over a batch of a training loader with a step in each turn, and the name of the batch.

    A batch may be a list of batches, as a collate_fn makes it of samples that it has sorted: for part in parts.
    """
    drawn = {use.expression for loader in project.loaders for use in loader.uses}
    for path in project.paths:
        for (inner, frame), (outer, around) in zip(path.loops, path.loops[1:]):
            if frame is not around or not isinstance(inner, ast.For) or not isinstance(outer, ast.For):
                continue
            entries = layers(project.analysis, inner.iter, frame.scope)[-1]
            is_batch = isinstance(entries, ast.Name) and entries.id in _batch_names(outer)
            if is_batch and not drawn.isdisjoint(walk(outer.iter)) and takes_step(project.analysis, inner, frame.scope):
                yield inner, entries, frame.scope  # type: ignore[misc]


def _batch_names(loop: ast.For) -> set[str]:
    """Return the name of the batch: batches of `for batches in loader`, or of `for i, batches in enumerate(loader)`."""
    target = loop.target
    if isinstance(target, ast.Tuple) and isinstance(loop.iter, ast.Call) and len(target.elts) == 2:
        target = target.elts[1]
    return {target.id} if isinstance(target, ast.Name) else set()
