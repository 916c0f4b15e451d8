"""Gradient accumulation: which batches end with a step of the optimizer, written as a test like `(i + 1) % n == 0`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result

from ..optimizer.optimizers import Optimizer


@dataclass(frozen=True)
class Cycle:
    """Every `length`-th batch: those where `variable + offset` is a multiple of it. Both are written as in the code."""

    variable: str
    offset: int
    length: str


@dataclass(frozen=True)
class Step:
    """A call of an optimizer's step that is not made for every batch, and for which it is made."""

    call: ast.Call
    scope: Scope
    test: ast.If
    cycle: Cycle


def steps_in(analysis: Analysis, optimizers: list[Optimizer], nodes: list[tuple[ast.AST, Scope]]) -> Iterator[Step]:
    """Yield the steps of optimizers among `nodes` that are made every so many batches."""
    made = {optimizer.call for optimizer in optimizers}
    for node, scope in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
            continue
        holders = [node.func.value, *node.args[:1]]  # optimizer.step(), scaler.step(optimizer)
        values = [value for holder in holders for value in analysis.evaluate(holder, scope)]
        if not any(isinstance(value, Result) and value.call in made for value in values):
            continue
        for outer in scope.source.ancestors(node):
            if isinstance(outer, ast.If):
                found = cycle_of(analysis, outer.test, scope)
                if found is not None and _is_in(scope, node, outer.body if found[1] else outer.orelse):
                    yield Step(node, scope, outer, found[0])


def cycle_of(analysis: Analysis, test: ast.expr, scope: Scope) -> tuple[Cycle, bool] | None:
    """Return the cycle in a test, and whether the test holds at its multiples (or everywhere else).

    Of `a or b` and `a and b` the part that has one; None where there is none or several.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = cycle_of(analysis, test.operand, scope)
        return (inner[0], not inner[1]) if inner else None
    if isinstance(test, ast.BoolOp):
        parts = [found for part in test.values if (found := cycle_of(analysis, part, scope))]
        return parts[0] if len(parts) == 1 else None
    if isinstance(test, ast.Name):
        values = [value for value in analysis.evaluate(test, scope) if isinstance(value, Display)]
        is_other = len(values) == 1 and isinstance(values[0].node, (ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp))
        return cycle_of(analysis, values[0].node, values[0].scope) if is_other else None
    if isinstance(test, ast.BinOp):  # `if i % n:`
        cycle = _of_modulo(test, 0)
        return (cycle, False) if cycle else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        cycle = _of_comparison(test)
        return (cycle, isinstance(test.ops[0], ast.Eq)) if cycle else None
    return None


def _of_comparison(test: ast.Compare) -> Cycle | None:
    left, right = test.left, test.comparators[0]
    if isinstance(right, ast.Constant) and isinstance(right.value, int):
        return _of_modulo(left, -right.value)
    is_last = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and isinstance(right.right, ast.Constant)
    if is_last and isinstance(left, ast.BinOp) and ast.dump(left.right) == ast.dump(right.left):  # type: ignore[attr-defined]
        return _of_modulo(left, right.right.value)  # type: ignore[attr-defined]
    return None


def _of_modulo(node: ast.expr, offset: int) -> Cycle | None:
    """Return the cycle of `(i + 1) % n`, moved on by `offset`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return None
    number = node.left
    if isinstance(number, ast.BinOp) and isinstance(number.right, ast.Constant) and isinstance(number.right.value, int):
        if not isinstance(number.op, (ast.Add, ast.Sub)):
            return None
        offset += number.right.value if isinstance(number.op, ast.Add) else -number.right.value
        number = number.left
    if not isinstance(number, (ast.Name, ast.Attribute)):
        return None
    length = ast.unparse(node.right)
    offset = offset % int(length) if length.isdigit() and length != "0" else offset
    return Cycle(ast.unparse(number), offset, length)


def _is_in(scope: Scope, node: ast.AST, body: list[ast.stmt]) -> bool:
    around = {node, *scope.source.ancestors(node)}
    return any(statement in around for statement in body)
