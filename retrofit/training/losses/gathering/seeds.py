"""The earliest places of rows: where they come out of a model, or enter a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, closure
from retrofit.analysis.nodes import children
from retrofit.analysis.scopes import Binding, Scope
from retrofit.analysis.values.kinds import Instance, LocalFunction, Result

from ..wrapped import functions_inside
from .values import OTHER, ROWS, ValueReader


def seeds(reader: ValueReader, node: ast.expr, scope: Scope) -> Iterator[Origin]:
    """Yield where the rows of an expression come out of a model, or enter the function: the earliest places."""
    found = closure([Origin(node, scope)], lambda origin: _earlier(reader, origin.node, scope))
    yield from (origin for origin in found if not _earlier(reader, origin.node, scope))


def _earlier(reader: ValueReader, node: ast.AST, scope: Scope) -> list[Origin]:
    """Return the rows that an expression is computed from, in this function and after a model."""

    def has_rows(part: ast.expr) -> bool:
        return reader.value(part, scope).kind in ROWS | {OTHER}

    if isinstance(node, ast.Name):
        owner, bindings = live_bindings(node, scope)
        is_known = reader.value(node, scope).kind in ROWS
        values = [_assigned(b) for b in bindings if b.kind == "value" and not (is_known and b.path)]
        found = [value for value in values if value is not None and has_rows(value)]
        return [Origin(value, scope) for value in found] if owner is scope and len(found) == len(bindings) else []
    if isinstance(node, ast.Call) and (node in reader.project.batch_values.calls or _runs_own(reader, node, scope)):
        return []
    inner: list[ast.AST] = [*children(node)]
    if isinstance(node, ast.Call):
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        inner = [*receiver, *node.args, *(keyword.value for keyword in node.keywords)]
    return [Origin(part, scope) for part in inner if isinstance(part, ast.expr) and has_rows(part)]


def _assigned(binding: Binding) -> ast.expr | None:
    """Return what a variable is assigned: y of `a, b = x, y`."""
    value = binding.value
    for key in binding.path:
        if not isinstance(value, (ast.Tuple, ast.List)) or not isinstance(key, int) or key >= len(value.elts):
            return None
        value = value.elts[key]
    return value


def _runs_own(reader: ValueReader, node: ast.Call, scope: Scope) -> bool:
    """Return whether a call runs a layer, or a function or an object of the project."""
    values = reader.analysis.evaluate(node.func, scope)
    is_made = any(isinstance(value, (Instance, Result, LocalFunction)) for value in values)
    return is_made or bool(functions_inside(reader.analysis, node, scope))
