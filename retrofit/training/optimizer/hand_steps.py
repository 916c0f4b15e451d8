"""Steps that a script makes without an optimizer: `p.data.add_(p.grad, alpha=-lr)` for the parameters of a model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

LOOPS = (ast.For, ast.AsyncFor)


@dataclass(frozen=True)
class HandStep:
    """A loop over parameters that changes each by its gradient; `rates`: what the gradients are multiplied by."""

    parameters: ast.expr
    scope: Scope
    rates: tuple[ast.expr, ...]


def hand_steps(analysis: Analysis) -> list[HandStep]:
    """Return the loops over parameters that make a step, in source order."""
    return analysis.fact("steps by hand", lambda: list(_find(analysis)))


def _find(analysis: Analysis) -> Iterator[HandStep]:
    for loop, scope in reached_nodes(analysis).of(*LOOPS):
        names = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}
        changes = [part for statement in loop.body for part in walk(statement) if _changes(part, names)]
        if changes:
            rates = [rate for change in changes for rate in _rates(change, names)]
            yield HandStep(loop.iter, scope, tuple(rates))


def _changes(node: ast.AST, names: set[str]) -> bool:
    """Return whether a node changes a parameter by its gradient: `p -= lr * p.grad`, `p.data.add_(...)`."""
    if isinstance(node, ast.AugAssign):
        return _is_of(node.target, names) and _reads_gradient(node.value, names)
    if isinstance(node, ast.Assign):  # p.data = p.data - lr * p.grad
        is_data = any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        return is_data and all(_is_of(t, names) for t in node.targets) and _reads_gradient(node.value, names)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.func.attr.endswith("_"):
        return False
    return _is_of(node.func.value, names) and any(_reads_gradient(part, names) for part in node.args)


def _is_of(node: ast.expr, names: set[str]) -> bool:
    """Return whether this is one of the parameters, or its data, and not its gradient."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _is_gradient(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad" and _is_of(node.value, names)


def _reads_gradient(node: ast.AST, names: set[str]) -> bool:
    return any(_is_gradient(part, names) for part in walk(node))


def _rates(change: ast.AST, names: set[str]) -> Iterator[ast.expr]:
    """Yield what the gradient is multiplied by: -lr of add_(p.grad, alpha=-lr), add_(-lr, p.grad), -lr * p.grad."""
    if isinstance(change, ast.Call):
        yield from (keyword.value for keyword in change.keywords if keyword.arg in ("alpha", "value"))
        if len(change.args) == 2 and _is_gradient(_bare(change.args[1]), names):
            yield change.args[0]
    for part in walk(change):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            for factor, other in ((part.left, part.right), (part.right, part.left)):
                if _is_gradient(_bare(other), names):
                    yield factor


def _bare(node: ast.expr) -> ast.expr:
    """Return `p.grad` of `p.grad.data` and of `p.grad.clone()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node.value if isinstance(node, ast.Attribute) and node.attr != "grad" else node
