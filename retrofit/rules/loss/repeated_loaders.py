"""Loaders that itertools.cycle repeats from memory next to another one: which batch is in use cannot be told then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Use
from retrofit.training.data.shards import drops_last
from retrofit.training.torch_api.data import ENDLESS

MESSAGE = "batches are repeated from memory next to those of another loader, and a last batch may be smaller"
HELP = (
    "give both loaders drop_last=True, or repeat this one by a generator that begins the loader again; as it is, the "
    "terms of such a step count on each rank by the samples of one of the batches"
)


def repeated_next_to_others(project: Project) -> Iterator[Use]:
    """Yield where a loader is given to itertools.cycle that a step draws from together with another one.

    The second pass comes from memory, so the runtime knows of the other loader's batch alone. Where all batches have
    their full size, all count the same.
    """
    trained = [(loader, use) for loader in project.loaders for use in loader.uses if use.role == TRAIN]
    for loader, use in trained:
        if _is_repeated(project, use):
            together = [loader, *(other for other, each in trained if other is not loader and each.loop is use.loop)]
            if len(together) > 1 and not all(drops_last(project.analysis, each) for each in together):
                yield use


def _is_repeated(project: Project, use: Use) -> bool:
    outer = use.scope.source.parents.get(use.expression)
    return isinstance(outer, ast.Call) and bool(project.analysis.called(outer, use.scope) & ENDLESS)
