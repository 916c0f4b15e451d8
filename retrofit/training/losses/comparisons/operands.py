"""The operands of an operation that compares rows: products, distances, einsum, and axes that are put in."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.losses import METRIC_LEARNING
from retrofit.training.torch_api.tensors import (
    COMBINATIONS,
    DISTANCES,
    DISTANCES_WITHIN,
    EINSUMS,
    PAIRING,
    PAIRING_METHODS,
    PRODUCT_METHODS,
    PRODUCTS,
    ROW_PRODUCTS,
    SAME_ENTRIES,
    TENSOR_PRODUCT,
    TRANSPOSED,
    TRANSPOSES,
)

from .patterns import equation_of


@dataclass(frozen=True)
class Pair:
    """Two expressions whose rows meet; `is_broadcast` where only shapes say so, which other things have as well."""

    left: ast.expr
    right: ast.expr
    is_broadcast: bool = False
    is_moved: bool = False  # not in the first axis
    drawn_from: tuple[ast.expr, ...] = ()  # what two loops over samples go through, and the elements of it
    repeated_at: tuple[tuple[ast.AST, Scope], ...] = ()  # the places without which no rows would meet


def pair_of(analysis: Analysis, node: ast.AST, scope: Scope) -> Pair | None:
    """Return what an operation compares row by row, None for any other."""
    if isinstance(node, ast.BinOp):
        return _of_product(node.left, node.right) if isinstance(node.op, ast.MatMult) else _of_lifted(node)
    return _of_call(analysis, node, scope) if isinstance(node, ast.Call) else None


def _of_call(analysis: Analysis, node: ast.Call, scope: Scope) -> Pair | None:
    names, given = analysis.called(node, scope), node.args
    is_metric_loss = any(name.startswith(METRIC_LEARNING) for name in analysis.named(node.func, scope))
    if given and (is_metric_loss or names & DISTANCES_WITHIN):
        return Pair(given[0], given[0])
    if names & DISTANCES and len(given) >= 2:
        return Pair(given[0], given[1])
    if (pair := _of_pairing(node, names)) is not None:
        return pair
    if names & EINSUMS:
        return _of_einsum(node)
    for name in names & set(PRODUCTS):
        if len(given) == PRODUCTS[name]:
            return _of_product(given[-2], given[-1])
    if isinstance(node.func, ast.Attribute) and len(given) >= PRODUCT_METHODS.get(node.func.attr, len(given) + 1):
        return _of_product(([node.func.value, *given])[-2], given[-1])
    return _of_lifted(node)


def _of_product(left: ast.expr, right: ast.expr) -> Pair | None:
    rows = _untransposed(right)
    return Pair(_plain(left), rows) if rows is not None else None


def _of_pairing(node: ast.Call, names: set[str]) -> Pair | None:
    """Return the operands of a function that makes an entry for each pair of the entries of one or two tensors."""
    given = node.args
    if names & PAIRING and len(given) == 2:
        return Pair(given[0], given[1], is_broadcast=True)
    if isinstance(node.func, ast.Attribute) and node.func.attr in PAIRING_METHODS and len(given) == 1 and not names:
        return Pair(node.func.value, given[0], is_broadcast=True)
    if COMBINATIONS in names and given:
        return Pair(given[0], given[0], is_broadcast=True)
    if names & ROW_PRODUCTS and len(given) == 2 and ast.unparse(given[0]) == ast.unparse(given[1]):
        return Pair(_plain(given[0]), _plain(given[1]))
    if TENSOR_PRODUCT not in names or len(given) < 2:
        return None
    dims = argument_for(node, ["a", "b", "dims"], "dims")
    axes = [part.elts if isinstance(part, (ast.List, ast.Tuple)) else [part] for part in getattr(dims, "elts", [])]
    numbers = [[getattr(axis, "value", None) for axis in own] for own in axes]
    if len(numbers) != 2 or any(0 in own or None in own for own in numbers):
        return None
    return Pair(_plain(given[0]), _plain(given[1]))  # dims=([1], [1]): both keep their first axis


def _of_einsum(node: ast.Call) -> Pair | None:
    """Return the operands of `"ic,jc->ij"` or `"ic,cj->ij"`, where both keep an index of their own."""
    equation = equation_of(node)
    if equation is None or len(equation[0]) != 2 or len(equation[2]) != 2:
        return None
    (first, second), output, (left, right) = equation
    kept = [set(part) & set(output) for part in (first, second)]
    if len(first) != 2 or len(second) != 2 or len(output) != 2 or any(len(own) != 1 for own in kept):
        return None
    if kept[0] == kept[1] or not first.startswith(tuple(kept[0])):
        return None
    rows = _plain(right) if second.startswith(tuple(kept[1])) else _untransposed(right) or _plain(right)
    return Pair(_plain(left), rows)


def _of_lifted(node: ast.BinOp | ast.Call) -> Pair | None:
    """Return x and y of an operation on `x.unsqueeze(1)` and `y.unsqueeze(0)`, however that is written."""
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else node.args[:2]
    if len(parts) != 2:
        return None
    lifted = [_lifted(part) for part in parts]
    if lifted[0] is None or lifted[1] is None or {lifted[0][1], lifted[1][1]} != {0, 1}:
        return None
    return Pair(_plain(lifted[0][0]), _plain(lifted[1][0]), is_broadcast=True)


def _lifted(node: ast.expr) -> tuple[ast.expr, int] | None:
    """Return what got a new first (0) or second (1) dimension, and which."""
    node = _plain(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze":
        dims = [part.value for part in node.args if isinstance(part, ast.Constant)]
        return (node.func.value, int(dims == [1])) if dims in ([0], [1]) else None
    if isinstance(node, ast.Subscript):
        index = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        new = [position for position, part in enumerate(index) if isinstance(part, ast.Constant) and part.value is None]
        return (node.value, new[0]) if new in ([0], [1]) else None
    return None


def _plain(node: ast.expr) -> ast.expr:
    """Return what a change of layout, type or device is made of."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_ENTRIES:
        node = node.func.value
    return node


def _untransposed(node: ast.expr) -> ast.expr | None:
    node = _plain(node)
    if isinstance(node, ast.Attribute) and node.attr in TRANSPOSED:
        return _plain(node.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in TRANSPOSES:
        return None
    is_function = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch" and bool(node.args)
    matrix, dims = (node.args[0], node.args[1:]) if is_function else (node.func.value, node.args)
    fixed = [dim.value for dim in dims if isinstance(dim, ast.Constant)]
    if node.func.attr == "permute" and fixed[:1] == [0]:
        return None  # the matrices of each sample
    return _plain(matrix) if not fixed or 0 in fixed or len(fixed) != len(dims) else None
