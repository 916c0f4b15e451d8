"""Loaders in containers: the expressions that put each of them there, `build(n)` of [build(n) for n in sizes]."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.keys import Key
from retrofit.analysis.flow.sources import Origin, closure, sources
from retrofit.analysis.python_api import ADDS_ONE
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.data.drawn import builders_of_value
from retrofit.training.data.loaders import Loader
from retrofit.training.data.next_calls import EVALUATION, Use
from retrofit.training.torch_api.runtime import TRAINING_SHARES

Place = tuple[ast.expr, Scope]
DISPLAYS = (ast.List, ast.Tuple, ast.Dict)
COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


def trained_entries(analysis: Analysis, loader: Loader, loaders: list[Loader]) -> list[Place]:
    """Return what puts the loaders that a training draws from into containers; [] where not all of it is seen.

    Nor are they returned where an evaluation draws from one of them.
    """
    of_uses = [list(_entries(analysis, use)) for use in loader.uses]
    found = dict.fromkeys(place for places in of_uses for place in places)
    others = [use for other in loaders for use in other.uses if use.role == EVALUATION]
    shared = {place for use in others for place in _entries(analysis, use)}
    return list(found) if all(of_uses) and shared.isdisjoint(found) else []


def are_split(analysis: Analysis, loader: Loader) -> bool:
    """Return whether each loader was given to the runtime where it was put into its container."""
    places = [place for use in loader.uses for place in _entries(analysis, use)]
    return bool(places) and all(
        isinstance(node, ast.Call) and analysis.called(node, scope) & TRAINING_SHARES for node, scope in places
    )


def _entries(analysis: Analysis, use: Use) -> Iterator[Place]:
    found: list[Place] = []
    is_known = True

    def step(origin: Origin) -> list[Origin]:
        nonlocal is_known
        if _is_entry(analysis, origin):
            found.append((origin.node, origin.scope))  # type: ignore[arg-type]
            return []
        given = list(sources(analysis, origin))
        is_known = is_known and bool(given)
        return given

    for _ in closure([_start(use)], step):
        pass
    yield from found if is_known else ()


def _put_in(outer: ast.AST) -> list[ast.AST]:
    """Return what a display or a comprehension puts into its container."""
    if isinstance(outer, (ast.List, ast.Tuple)):
        return list(outer.elts) if isinstance(outer.ctx, ast.Load) else []
    if isinstance(outer, ast.Dict):
        return list(outer.values)
    return [outer.value if isinstance(outer, ast.DictComp) else outer.elt]  # type: ignore[attr-defined]


def _start(use: Use) -> Origin:
    """Return the loaders that are drawn from: each entry of *loaders, loaders[:2], loaders.values()."""
    node, outer = use.expression, use.scope.source.parents.get(use.expression)
    if isinstance(outer, ast.Call) and outer.func is node:
        return Origin(outer, use.scope, (Key.ELEMENT,))
    if isinstance(node, ast.Starred):
        return Origin(node.value, use.scope, (Key.ELEMENT,))
    is_slice = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return Origin(node, use.scope, (Key.ELEMENT,) if is_slice else ())


def _is_entry(analysis: Analysis, origin: Origin) -> bool:
    """Return whether an expression makes a loader where it is put into a container."""
    node, parents = origin.node, origin.scope.source.parents
    outer = parents.get(node)
    if origin.keys or not isinstance(node, ast.expr) or outer is None:
        return False
    is_written = isinstance(outer, (*DISPLAYS, *COMPREHENSIONS)) and node in _put_in(outer)
    is_added = isinstance(outer, ast.Call) and last_name(outer) in ADDS_ONE and node in outer.args
    is_set = isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Subscript)
    is_placed = is_written or is_added or is_set
    return is_placed and bool(builders_of_value(analysis, node, origin.scope))
