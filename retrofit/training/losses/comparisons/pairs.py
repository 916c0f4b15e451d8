"""Products in which rows of different samples meet, wherever the axis of the samples is: z @ z.transpose(1, 2)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import (
    BATCHED_METHODS,
    BATCHED_PRODUCTS,
    EINSUMS,
    PRODUCT_METHODS,
    PRODUCTS,
    TRANSPOSED,
)

from ..gathering.dimensions import differing_axes
from ..reductions.kinds import FLAT
from ..reductions.reduction import plain_reader
from .patterns import equation_of

if TYPE_CHECKING:
    from retrofit.training import Project

Operands = tuple[ast.expr, ast.expr]


def samples_that_meet(
    project: Project, node: ast.AST, scope: Scope, can_be: Callable[[ast.expr], bool]
) -> Operands | None:
    """Return the operands of a product that has an entry for each pair of samples, as far as their axes are known.

    `can_be`: tells cheaply which operands count. The kind of any takes far longer to find.
    """
    if isinstance(node, ast.Call) and EINSUMS & project.analysis.called(node, scope):
        return _of_einsum(project, node, scope, can_be)
    given = _operands(project.analysis, node, scope)
    if given is None or not all(map(can_be, given)):
        return None
    rows, columns = (_axis(project, part, scope) for part in given)
    if rows is None or columns is None or rows < 1:
        return None
    if _swaps_last_axes(given[1]):
        columns = {1: 2}.get(columns, columns)  # of three axes
    return given if columns == rows + 1 else None


def rows_across_axes(
    project: Project, node: ast.AST, scope: Scope, can_be: Callable[[ast.expr], bool]
) -> Operands | None:
    """Return the operands of x - y that has an entry for each pair of samples: these are in another axis of each.

    `can_be`: tells cheaply which operands count.
    """
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        operands = (node.left, node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        operands = (node.left, node.comparators[0])
    else:
        return None
    difference = differing_axes(project.analysis, *operands, scope)
    if difference is None or not all(map(can_be, operands)):
        return None
    one, other = (_axis(project, part, scope) for part in operands)
    if one is None or other is None or one == other:
        return None
    return operands if one - other != difference else None  # the last axes of both meet


def _axis(project: Project, node: ast.expr, scope: Scope) -> int | None:
    """Return the axis of the samples, None where there is none or it is merged into others."""
    kind = plain_reader(project).kind(node, scope)
    return kind.axis if kind.has_rows and 0 <= kind.axis < FLAT else None


def _operands(analysis: Analysis, node: ast.AST, scope: Scope) -> Operands | None:
    """Return the factors of a matrix product."""
    if isinstance(node, ast.BinOp):
        return (node.left, node.right) if isinstance(node.op, ast.MatMult) else None
    if not isinstance(node, ast.Call):
        return None
    functions, methods = {**PRODUCTS, **BATCHED_PRODUCTS}, {**PRODUCT_METHODS, **BATCHED_METHODS}
    for name in analysis.called(node, scope) & set(functions):
        return (node.args[-2], node.args[-1]) if len(node.args) == functions[name] else None
    if isinstance(node.func, ast.Attribute) and len(node.args) >= methods.get(node.func.attr, len(node.args) + 1):
        first = [node.func.value, *node.args][-2]
        return first, node.args[-1]
    return None


def _swaps_last_axes(node: ast.expr) -> bool:
    """Return whether this is `x.mT` or x.transpose(-1, -2), which the kind of x says nothing of."""
    if isinstance(node, ast.Attribute):
        return node.attr in TRANSPOSED
    if not isinstance(node, ast.Call) or last_name(node) not in ("transpose", "swapaxes"):
        return False
    return {ast.unparse(part) for part in node.args[-2:]} == {"-1", "-2"}


def _of_einsum(project: Project, node: ast.Call, scope: Scope, can_be: Callable[[ast.expr], bool]) -> Operands | None:
    """Return the operands of einsum("tbc,tdc->tbd", x, y), in which the samples of each have a letter of their own."""
    equation = equation_of(node)
    if equation is None or len(equation[2]) != 2 or "." in equation[1]:
        return None
    inputs, output, operands = equation
    if not all(map(can_be, operands)):
        return None
    letters = []
    for operand, part in zip(inputs, operands):
        axis = _axis(project, part, scope)
        if axis is None or axis >= len(operand):
            return None
        letters.append(operand[axis])
    is_pair = len(letters) == 2 and letters[0] != letters[1] and set(letters) <= set(output)
    return (operands[0], operands[1]) if is_pair else None
