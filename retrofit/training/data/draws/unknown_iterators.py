"""Iterators of libraries that are not known, from which a training draws next to its loaders."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.files.standard_library import standard_modules
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result, Value
from retrofit.training.torch_api.data import COMBINES, NOT_SAMPLES, NUMBERS, SAME_ELEMENTS

from ...loops import Path
from ..drawn import loaders_in, may_be_loader
from ..loaders import draws_from

if TYPE_CHECKING:
    from ... import Project

KNOWN = standard_modules() | {"torch", "numpy"}  # packages that do not iterate over samples


def unknown_iterators(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a loss is computed from, and is taken one by one from something that no loader is known to be in.

    `next(stream)` of `stream = iter(library.samples())`, and `zip(loader, stream)`.
    """
    if project.distribution.is_by_hand:
        return
    may_draw = any("next" in source.text for source in project.sources)  # the search for what a loss has is long
    found: dict[ast.expr, Scope] = {}
    for path in (path for path in project.paths if draws_from(project.loaders, path)):
        frame = path.frames[0]
        starts = [Origin(frame.node.func.value, frame.scope)] if may_draw else []  # type: ignore[attr-defined]
        for origin in origins(project.analysis, starts, lambda origin: list(inputs(project.analysis, origin))):
            for drawn in _drawn(origin):
                if _is_unknown(project.analysis, drawn, origin.scope):
                    found[drawn] = origin.scope
        found.update(_in_turn(project.analysis, path))
    yield from found.items()


def _drawn(origin: Origin) -> list[ast.expr]:
    """Return what a call of next(), in what a loss is computed from, draws from."""
    node = origin.node
    return node.args[:1] if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next" else []


def _in_turn(analysis: Analysis, path: Path) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a training loop goes through next to a loader."""
    for loop, frame in path.loops:
        for part in walk(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else ():
            if isinstance(part, ast.Call) and analysis.called(part, frame.scope) & COMBINES:
                unknown = (arg for arg in part.args if _is_unknown(analysis, arg, frame.scope))
                yield from ((arg, frame.scope) for arg in unknown if not may_be_loader(analysis, arg, frame.scope))


def _is_unknown(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if loaders_in(analysis, node, scope):
        return False
    return any(_is_of_library(analysis, value) for value in analysis.evaluate(node, scope))


def _is_of_library(analysis: Analysis, value: Value) -> bool:
    """Return whether a call of a library that is not known made something, or the iterable that an iterator is of."""
    if not isinstance(value, Result):
        return False
    if value.builder in SAME_ELEMENTS:
        return any(
            _is_of_library(analysis, inner)
            for part in value.call.args[:1]
            for inner in analysis.evaluate(part, value.scope)
        )
    package, dot, _ = value.builder.partition(".")
    is_known = not dot or package in KNOWN or value.builder in NUMBERS
    return not is_known and last_name(value.call) not in NOT_SAMPLES
