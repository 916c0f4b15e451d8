"""Layouts of data: as many sequences as a batch has samples, side by side in one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import given_parameters, last_name, returns_of
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.sources import Origin, functions_run, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import INTEGER_CASTS, SAME_ENTRIES, TRANSPOSED, TRANSPOSES, VIEWS

from .sample_rows import is_named

if TYPE_CHECKING:
    from .... import Project

SAME_LAYOUT = SAME_ENTRIES | INTEGER_CASTS
DEEPEST = 8  # names and calls from where data are cut to where they are laid out


@dataclass(frozen=True)
class Layout:
    """The data are `size` sequences, one after another along `dimension`."""

    size: ast.expr
    scope: Scope
    dimension: int = 0


def layout_of(analysis: Analysis, node: ast.expr, scope: Scope, deepest: int = DEEPEST) -> Layout | None:
    """Return how the sequences of an expression lie, where it is made by `view(batch_size, -1)`; None for all else."""
    found = set(_layouts(analysis, node, scope, deepest)) if deepest else set()
    return found.pop() if len(found) == 1 else None


def _layouts(analysis: Analysis, node: ast.expr, scope: Scope, deepest: int) -> Iterator[Layout]:
    held = _turned(analysis, node, scope)
    if held is not None:
        inner = layout_of(analysis, held, scope, deepest - 1)
        yield from [replace(inner, dimension=1 - inner.dimension)] if inner is not None else []
    elif isinstance(node, ast.Name):
        for origin in sources(analysis, Origin(node, scope)):
            is_other = isinstance(origin.node, ast.expr) and not origin.keys
            inner = layout_of(analysis, origin.node, origin.scope, deepest - 1) if is_other else None  # type: ignore[arg-type]
            yield from [inner] if inner is not None else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_LAYOUT:
        inner = layout_of(analysis, node.func.value, scope, deepest - 1)
        yield from [inner] if inner is not None else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        sizes = node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple) else node.args
        is_written = len(sizes) == 2 and isinstance(sizes[0], (ast.Name, ast.Attribute, ast.Constant))
        if is_written and (isinstance(sizes[0], ast.Constant) or is_named(analysis, sizes[0], scope)):
            yield Layout(sizes[0], scope)
    elif isinstance(node, ast.Call):
        yield from _returned(analysis, node, scope, deepest)


def _turned(analysis: Analysis, node: ast.expr, scope: Scope) -> ast.expr | None:
    """Return `x` of x.t(), x.T, x.transpose(0, 1), torch.t(x)."""
    if isinstance(node, ast.Attribute) and node.attr in TRANSPOSED:
        return node.value
    if not isinstance(node, ast.Call) or last_name(node) not in TRANSPOSES:
        return None
    is_function = any(name.startswith("torch.") for name in analysis.called(node, scope))
    if is_function and node.args and not _is_method(analysis, node, scope):
        return node.args[0]
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _is_method(analysis: Analysis, node: ast.Call, scope: Scope) -> bool:
    return any(name.startswith("torch.Tensor.") for name in analysis.called(node, scope))


def _returned(analysis: Analysis, node: ast.Call, scope: Scope, deepest: int) -> Iterator[Layout]:
    """Yield the layouts that a function of the project returns, with the number of sequences that it is told."""
    for function in functions_run(analysis, node, scope):
        for value in returns_of(function.node):
            inner = layout_of(analysis, value, function.scope, deepest - 1)
            if inner is None:
                continue
            names = given_parameters(function.scope)
            is_told = isinstance(inner.size, ast.Name) and inner.scope is function.scope and inner.size.id in names
            given = analysis.site_of(node, scope, function).argument(names, inner.size.id) if is_told else None  # type: ignore[attr-defined]
            yield replace(inner, size=given[0], scope=given[1]) if given is not None else inner


def layout_functions(project: Project) -> set[Scope]:
    """Return the functions that lay the sequences of a training side by side, and those that they call."""
    return {
        function.scope
        for node, scope in project.draws.laid_out.items()
        for outer in (part for part in walk(node) if isinstance(part, ast.Call))
        for call, where in calls_within(project.analysis, outer, scope)
        for function in functions_run(project.analysis, call, where)
    }
