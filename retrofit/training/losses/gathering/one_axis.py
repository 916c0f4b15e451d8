"""Evidence that a tensor may have no axis but that of the samples, as labels, or the losses of single samples."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.sources import Origin, closure, origins, sources
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import (
    EXTREMES,
    FLATTENS,
    INDICES,
    OF_EACH_ENTRY,
    REDUCTIONS,
    SORTS,
    TRANSPOSES,
    VIEWS,
    not_in_place,
)

from ..terms import terms_at
from ..wrapped import functions_inside
from .dimensions import number_of_axes

if TYPE_CHECKING:
    from retrofit.training import Project

REMOVES = REDUCTIONS | EXTREMES | INDICES | {"cosine_similarity", "pairwise_distance", "vecdot", "squeeze", "logsumexp"}
MAKES_TENSORS = TRANSPOSES | VIEWS | {"stack"}
KEEPS = OF_EACH_ENTRY | SORTS | {"numpy", "cumsum", "astype", "long", "int"}


def may_have_one_axis(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether something on the way to a tensor can leave it no axis but that of the samples.

    What a loader gives may be labels; what a layer gives has an axis of features, until one is taken away.
    """
    return _may_have_one(project, node, scope, lambda origin: _has_one(project, origin) or _shows_one(project, origin))


def is_left_one_axis(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a tensor seems to have no axis but that of the samples, also where one is asked for from its end.

    The losses of single samples, a column of the outputs, or what is flattened.
    """
    return _may_have_one(project, node, scope, lambda origin: _has_one(project, origin))


def _may_have_one(project: Project, node: ast.expr, scope: Scope, shows: Callable[[Origin], bool]) -> bool:
    known = number_of_axes(project.analysis, node, scope)
    if known is not None:
        return known == 1
    return any(map(shows, closure([Origin(node, scope)], lambda origin: _before(project, origin))))


def is_tensor(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is certainly a tensor, and not a list of some, by what it is made with."""
    found = (origin.node for origin in origins(analysis, [Origin(node, scope)]) if not origin.keys)
    return any(isinstance(part, ast.Call) and last_name(part) in MAKES_TENSORS for part in found)


def _before(project: Project, origin: Origin) -> Iterator[Origin]:
    """Yield the tensors that have as many axes as one, one step before."""
    node, scope, keys = origin
    if isinstance(node, ast.BinOp):
        yield from (origin.to(part) for part in (node.left, node.right))
    elif isinstance(node, ast.UnaryOp):
        yield origin.to(node.operand)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield origin.to(node.value)
    elif isinstance(node, ast.Call):
        functions = functions_inside(project.analysis, node, scope)
        for function in functions:
            yield from (Origin(value, function.scope, keys) for value in returns_of(function.node))
        if not functions and last_name(node).rstrip("_") in KEEPS:
            yield from (Origin(part, scope) for part in _operand(node, scope))
    elif not isinstance(node, ast.AugAssign):
        yield from sources(project.analysis, origin)


def _operand(node: ast.Call, scope: Scope) -> list[ast.expr]:
    is_method = isinstance(node.func, ast.Attribute) and not is_imported(node.func, scope)
    return [node.func.value] if is_method else node.args[:1]  # type: ignore[attr-defined]


def _shows_one(project: Project, origin: Origin) -> bool:
    """Return whether this is drawn by a loop over batches, or a function takes an axis away."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.Name):
        bindings = (scope.find(node.id) or (scope, []))[1]
        return any(binding.node in project.batch_values.loops for binding in bindings)
    is_removed = isinstance(node, ast.Call) and last_name(node) in REMOVES
    return is_removed and not any(k.arg in ("keepdim", "keepdims") for k in node.keywords)  # type: ignore[union-attr]


def _has_one(project: Project, origin: Origin) -> bool:
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        kept = [part for part in parts if isinstance(part, ast.Slice) or getattr(part, "value", 0) in (None, ...)]
        return len(kept) < 2 and any(isinstance(getattr(part, "value", None), int) for part in parts)
    if not isinstance(node, ast.Call):
        return False
    name = not_in_place(last_name(node))
    rest = node.args if _operand(node, scope) != node.args[:1] else node.args[1:]
    if any(term.reduction == "none" for term in terms_at(project.analysis, node, scope)):
        return True
    if name in VIEWS:
        return [ast.unparse(part) for part in rest] == ["-1"]
    return name in FLATTENS and not rest and not node.keywords
