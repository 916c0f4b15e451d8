"""Tensors that are made for the batch size, and resized: `inputs.data.resize_as_(images).copy_(images)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import RESIZES

from ..batch_values import GRADIENT
from ..carried_state import takes_size_of_batch
from ..shards import builders_of, drops_last, given_to

if TYPE_CHECKING:
    from retrofit.training import Project


@dataclass(frozen=True)
class ResizedView:
    """A call that resizes a view of a tensor, which leaves the size of the tensor itself as it is.

    `views`: all of them, if the tensor itself can be resized in their place and one process is as before: all batches
    have the size that the tensor was made with.
    """

    call: ast.Call
    scope: Scope
    name: str
    views: tuple[ast.Attribute, ...]


def resized_views(project: Project) -> Iterator[ResizedView]:
    """Yield the views of tensors that are resized for the batches of the training."""
    for node, scope in project.in_batches.of(ast.Call):
        tensor = _tensor_of(node)
        if tensor is not None:
            views = _all_views(project, tensor, scope) if _is_as_made(project, tensor, scope) else ()
            yield ResizedView(node, scope, ast.unparse(tensor), views)


def resized_tensors(project: Project) -> Iterator[ast.Call]:
    """Yield the calls that make tensors which get the size of each batch, however large they are before."""
    for node, scope in project.in_batches.of(ast.Call):
        tensor = node.func.value if takes_size_of_batch(node) else _tensor_of(node)  # type: ignore[attr-defined]
        if tensor is not None and (_tensor_of(node) is None or _is_as_made(project, tensor, scope)):
            yield from (call for call, _ in _makings(project, tensor, scope))


def _tensor_of(node: ast.AST) -> ast.expr | None:
    """Return the tensor of which `node` resizes a view."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RESIZES:
        view = node.func.value
        if isinstance(view, ast.Attribute) and view.attr == "data":
            return view.value
    return None


def _all_views(project: Project, tensor: ast.expr, scope: Scope) -> tuple[ast.Attribute, ...]:
    """Return the views of a tensor that are resized; none where one of them does something else, too."""
    found: list[ast.Attribute] = []
    owner = scope.find(tensor.id) if isinstance(tensor, ast.Name) else None
    for node, where in reached_nodes(project.analysis).of(ast.Call):
        other = _tensor_of(node)
        if not isinstance(other, ast.Name) or owner is None or other.id != tensor.id:  # type: ignore[attr-defined]
            continue
        if (bound := where.find(other.id)) is None or bound[0] is not owner[0]:
            continue
        statement = where.source.statement(node)
        parts = [(part, where) for part in walk(statement) if isinstance(part, ast.Name)]
        has_gradients = any(GRADIENT in project.batch_values.sources_of(*part) for part in parts)
        if not isinstance(statement, ast.Expr) or _first(statement.value) is not node or has_gradients:
            return ()
        found.append(node.func.value)  # type: ignore[attr-defined]
    return tuple(found)


def _first(node: ast.expr) -> ast.expr:
    """Return the first call of a chain of methods: `x.data.resize_(4)` of `x.data.resize_(4).copy_(y)`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _tensor_of(node) is None:
        node = node.func.value
    return node


def _is_as_made(project: Project, tensor: ast.expr, scope: Scope) -> bool:
    """Return whether a tensor is made with as many rows as each batch of each loader has."""
    sizes = set()
    for loader in project.loaders:
        if not drops_last(project.analysis, loader):
            return False
        given = [given_to(call, "batch_size") for call, _ in builders_of(project.analysis, loader)]
        sizes |= {ast.unparse(size) if size is not None else None for size in given}
    rows = [(call.args[0], where) for call, where in _makings(project, tensor, scope) if call.args]
    rows = [(row.elts[0] if isinstance(row, (ast.Tuple, ast.List)) and row.elts else row, where) for row, where in rows]
    return len(sizes) == 1 and any(
        ast.unparse(row) in sizes and (row, where) in project.batch_sizes for row, where in rows
    )


def _makings(project: Project, tensor: ast.expr, scope: Scope) -> list[tuple[ast.Call, Scope]]:
    """Return the calls in what a variable is set to, with their scopes."""
    bindings = bindings_of(project.analysis, tensor, scope) if isinstance(tensor, ast.Name) else []
    parts = [(part, where) for b, where in bindings if b.value is not None for part in walk(b.value)]
    return [(part, where) for part, where in parts if isinstance(part, ast.Call)]
