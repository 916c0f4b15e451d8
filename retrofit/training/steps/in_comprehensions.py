"""Trainings that a comprehension runs: `losses = [step(x, y) for x, y in loader]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.nodes import COMPREHENSIONS
from retrofit.analysis.scopes import Scope

from ..data.drawn import loaders_in
from ..data.loaders import draws_from

if TYPE_CHECKING:
    from .. import Project


def training_comprehensions(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the comprehensions that go through a loader with a step in each turn, where no loop draws the batches."""
    seen: set[ast.AST] = set()
    for path in project.paths:
        for frame in path.frames if not draws_from(project.loaders, path) else ():
            for outer in frame.scope.source.ancestors(frame.node):
                if outer is frame.scope.node:
                    break
                if isinstance(outer, COMPREHENSIONS) and outer not in seen:
                    seen.add(outer)
                    if any(loaders_in(project.analysis, part.iter, frame.scope) for part in outer.generators):
                        yield outer, frame.scope
