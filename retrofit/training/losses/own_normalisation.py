"""Normalisation of the project's own modules while they train: the means over the batch that can be of all ranks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS

from .batch_statistics import is_statistic
from .writes import Write

if TYPE_CHECKING:
    from retrofit.training import Project

COUNTS = SHAPE_METHODS | {"len", "numel"}


def only_in_training(node: ast.AST, scope: Scope) -> bool:
    """Return whether a module comes to a node while it trains alone: under `if self.training`, or after its exit."""
    inner = node
    for outer in scope.source.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if _implies_training(outer.test, inner in body):
                return True
        if isinstance(inner, ast.stmt) and any(_leaves(part) for part in _before(scope, inner)):
            return True
        if outer is scope.node:
            return False
        inner = outer
    return False


def means_of_training(project: Project, write: Write) -> list[ast.expr]:
    """Return the means over the batch of a method that keeps statistics, where all that it computes follows from them.

    None of them where it takes other statistics, counts samples, or also computes them while it is evaluated.
    """
    nodes = [node for node in own_nodes(write.scope.node) if isinstance(node, ast.expr)]
    found = [node for node in nodes if is_statistic(project, node, write.scope)]
    means = [node for node in found if last_name(node) == "mean" and only_in_training(node, write.scope)]
    counted = any(isinstance(node, ast.Attribute) and node.attr in SHAPE_ATTRIBUTES for node in nodes)
    counted = counted or any(isinstance(node, ast.Call) and last_name(node) in COUNTS for node in nodes)
    return means if len(means) == len(found) and not counted else []


def _before(scope: Scope, statement: ast.stmt) -> list[ast.stmt]:
    block = block_of(scope.source, statement)
    return block[: block.index(statement)]


def _leaves(statement: ast.stmt) -> bool:
    """Return whether a module that does not train leaves its method here: `if not self.training: return x`."""
    is_exit = isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Return, ast.Raise))
    return is_exit and _implies_training(statement.test, False)  # type: ignore[attr-defined]


def _implies_training(test: ast.expr, value: bool) -> bool:
    """Return whether a module trains where a test has a value."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _implies_training(test.operand, not value)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if value else ast.Or):
        return any(_implies_training(part, value) for part in test.values)
    return value and ast.unparse(test) == "self.training"
