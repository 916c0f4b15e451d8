"""Expressions that are the rank, or the number of processes: asked for, passed on, or named so."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from retrofit.analysis.flow.bindings import bindings_of, builder_of
from retrofit.analysis.flow.sources import MOST_ORIGINS, Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Result, Value
from retrofit.training.torch_api.distributed import COMPUTING, RANK, WORLD_SIZE

from .rank_sources import asked_for, called_so


def is_rank(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the number of the process, or tells it as `rank % num_gpus` does."""
    known: dict[Origin, bool] = analysis.fact("ranks", dict)
    start = Origin(node, scope)
    if start not in known:
        seen = []
        for origin in origins(analysis, [start], partial(_parts_of_rank, analysis, known)):
            seen.append(origin)
            if known.get(origin) or _tells_rank(analysis, origin):
                known[start] = True
                return True
        is_complete = len(seen) < MOST_ORIGINS
        known.update(dict.fromkeys(seen if is_complete else [start], False))
    return known[start]


def _parts_of_rank(analysis: Analysis, known: dict[Origin, bool], origin: Origin) -> Iterable[Origin] | None:
    node = origin.node
    if origin in known:
        return ()
    if isinstance(node, ast.BinOp):
        return [origin.to(node.left), origin.to(node.right)]
    return _converted(analysis, origin, {"int", "str"})


def _tells_rank(analysis: Analysis, origin: Origin) -> bool:
    """Return whether this very expression is the number of the process."""
    node, scope = origin.node, origin.scope
    if origin.keys or not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return False
    if asked_for(analysis, node, scope) == RANK:
        return True
    if isinstance(node, ast.Name) and analysis.spawned.gives_rank(scope, node.id):
        return True
    if called_so(analysis, node) != RANK or any(_is_something_else(value) for value in analysis.evaluate(node, scope)):
        return False
    return {binding.kind for binding, _ in bindings_of(analysis, node, scope)} != {"item"}  # the variable of a loop


def is_world_size(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the number of processes itself."""
    found = origins(analysis, [Origin(node, scope)], partial(_converted, analysis, functions={"int", "float"}))
    return any(_tells_world_size(analysis, origin) for origin in found)


def _tells_world_size(analysis: Analysis, origin: Origin) -> bool:
    """Return whether this very expression is the number of processes."""
    node, scope = origin.node, origin.scope
    if origin.keys:
        return False
    if asked_for(analysis, node, scope) == WORLD_SIZE:
        return True
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)) or called_so(analysis, node) != WORLD_SIZE:
        return False
    return not any(builder_of(value) for value in analysis.evaluate(node, scope))


def _converted(analysis: Analysis, origin: Origin, functions: set[str]) -> list[Origin] | None:
    """Return what int(x) converts, None for another expression."""
    node = origin.node
    is_conversion = isinstance(node, ast.Call) and node.args and analysis.called(node, origin.scope) & functions
    return [origin.to(node.args[0])] if is_conversion else None  # type: ignore[union-attr]


def _is_something_else(value: Value) -> bool:
    """Return whether what is called a rank is known to be no process: the place of a hit, the counter of a loop."""
    return isinstance(value, Item) or (isinstance(value, Result) and value.builder.startswith(COMPUTING))
