"""Sequences that a training reads side by side: `data = text.view(batch_size, -1)`, then data[:, i : i + length]."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import OWN_SAMPLES

from .layout import Layout, layout_of
from .slices import moves

Place = tuple[ast.expr, Scope]


@dataclass(frozen=True)
class SideBySide:
    """An expression outside of the loop that lays the sequences side by side; `layout` is None where it is split."""

    node: ast.expr
    scope: Scope
    layout: Layout | None


def side_by_side(
    analysis: Analysis, node: ast.AST, scope: Scope, loop_nodes: frozenset[ast.AST], followed: Collection[ast.AST]
) -> list[SideBySide]:
    """Return what lays out the sequences that a slice of a training loop takes a step of; nothing for other slices.

    `followed`: what leads from the loss to the slice, and the calls that lead to the loop.
    """
    cut = _cut_along(analysis, node, scope, loop_nodes)
    if cut is None or not _is_read_one_further(loop_nodes):
        return []
    assert isinstance(node, ast.Subscript)
    found = list(_laid_out(analysis, node, scope, loop_nodes, followed))
    return [] if any(laid.layout is not None and laid.layout.dimension == cut for laid in found) else found


def _cut_along(analysis: Analysis, node: ast.AST, scope: Scope, loop_nodes: frozenset[ast.AST]) -> int | None:
    """Return the dimension along which a slice moves with the loop; None for what is no such slice."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for dimension, part in enumerate(parts[:2]):
        if not isinstance(part, ast.Slice):
            return None
        if part.lower is not None and moves(analysis, part.lower, scope, loop_nodes):
            return dimension
    return None


def _is_read_one_further(loop_nodes: frozenset[ast.AST]) -> bool:
    """Return whether a loop also takes a slice that begins one further: the targets of a sequence."""
    starts = (n.lower for n in loop_nodes if isinstance(n, ast.Slice) and n.lower is not None)
    return any(isinstance(part, ast.Constant) and part.value == 1 for start in starts for part in walk(start))


def _laid_out(
    analysis: Analysis, cut: ast.Subscript, scope: Scope, loop_nodes: frozenset[ast.AST], followed: Collection[ast.AST]
) -> Iterator[SideBySide]:
    found = {}

    def through(origin: Origin) -> list[Origin] | tuple[()]:
        node, where = origin.node, origin.scope
        if node not in loop_nodes and isinstance(node, ast.Call) and not origin.keys:
            calls = (part for part in walk(node) if isinstance(part, ast.Call))
            split = next((call for call in calls if analysis.called(call, where) & OWN_SAMPLES), None)
            layout = layout_of(analysis, node, where) if split is None else None
            if split is not None or layout is not None:
                found[node] = SideBySide(split or node, where, layout)
                return ()
        before = sources(analysis, origin)
        bindings = bindings_of(analysis, node, where) if isinstance(node, ast.Name) else ()
        is_given = any(binding.kind == "parameter" for binding, _ in bindings)
        return [part for part in before if _call_around(part) in followed] if is_given else list(before)

    for _ in origins(analysis, [Origin(cut.value, scope)], through):
        pass
    yield from found.values()


def _call_around(origin: Origin) -> ast.AST | None:
    """Return the call that an expression is an argument of."""
    outer = origin.scope.source.parents.get(origin.node)
    return origin.scope.source.parents.get(outer) if isinstance(outer, ast.keyword) else outer


def read_elsewhere(
    analysis: Analysis, cut: ast.Subscript, scope: Scope, laid: ast.expr, followed: Collection[ast.AST]
) -> str:
    """Return why laid out data are not the training's alone: other lines take their batches from there."""
    reads: list[tuple[ast.expr, Iterator[Origin]]] = []
    for call, where in call_chains(analysis, cut, scope):
        if isinstance(call, ast.Call) and call not in followed:
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            reads.append((call, origins(analysis, [Origin(value, where) for value in given])))
    others = [(node, where) for node, where in _other_cuts(analysis) if node not in followed]
    reads += [(node, origins(analysis, [Origin(node.value, where)], _not_of_calls)) for node, where in others]
    for node, found in reads:
        if any(part.node is laid for part in found):
            return f"{ast.unparse(node)} reads what {ast.unparse(laid)} gives, of which each process would have a part"
    return ""


def _not_of_calls(origin: Origin) -> tuple[()] | None:
    return () if isinstance(origin.node, ast.Call) else None


def _other_cuts(analysis: Analysis) -> Iterator[tuple[ast.Subscript, Scope]]:
    """Yield the slices of variables in all functions."""
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Subscript):
            if isinstance(node.value, (ast.Name, ast.Attribute)):
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                if any(isinstance(part, ast.Slice) for part in parts):
                    yield node, scope
