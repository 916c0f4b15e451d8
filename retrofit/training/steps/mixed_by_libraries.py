"""Samples that are mixed with others of their batch by a library, or where a loader puts a batch together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from operator import is_not
from typing import TYPE_CHECKING

from retrofit.analysis.nodes import COMPREHENSIONS, walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction, Result
from retrofit.training.torch_api.randomness import MIXERS

from ..data.next_calls import TRAIN
from ..data.shards import builders_of, places_given
from ..loops import LOOPS

if TYPE_CHECKING:
    from retrofit.training import Project

Place = tuple[ast.Call, Scope]
PER_SAMPLE = (*LOOPS, *COMPREHENSIONS)


def is_mixer(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an object mixes the samples of a batch: MixUp(...), or RandomChoice([MixUp(...), CutMix(...)])."""
    made = [value for value in analysis.evaluate(node, scope) if isinstance(value, Result)]
    if any(value.builder in MIXERS for value in made):
        return True
    parts = [(part, value.scope) for value in made for part in walk(value.call) if part is not value.call]
    inner = (value for part, where in parts if isinstance(part, ast.expr) for value in analysis.evaluate(part, where))
    return any(isinstance(value, Result) and value.builder in MIXERS for value in inner)


def collated(project: Project) -> list[Place]:
    """Return the calls that a training loader makes once for each batch, in the function that puts it together."""
    return project.analysis.fact("collated", lambda: list(dict.fromkeys(_find(project))))


def _find(project: Project) -> Iterator[Place]:
    analysis = project.analysis
    for loader in project.loaders:
        for builder in builders_of(analysis, loader) if TRAIN in loader.roles else ():
            for node, scope in places_given(analysis, *builder, "collate_fn"):
                if is_mixer(analysis, node, scope):
                    yield builder
                for value in analysis.evaluate(node, scope):
                    yield from _once(analysis, value, set())


def _once(analysis: Analysis, value: object, seen: set[ast.AST]) -> Iterator[Place]:
    """Yield the calls of a function, or of an object that is called, outside of what it does for each sample."""
    function = analysis.classes.method(value.scope, "__call__") if isinstance(value, Instance) else value
    if not isinstance(function, LocalFunction) or function.node in seen:
        return
    seen.add(function.node)
    scope = function.scope
    for node in own_nodes(function.node):
        inside = takewhile(partial(is_not, function.node), scope.source.ancestors(node))
        if isinstance(node, ast.Call) and not any(isinstance(outer, PER_SAMPLE) for outer in inside):
            yield node, scope
            for called in analysis.functions_called(node, scope):
                yield from _once(analysis, called, seen)
