"""Uses of a gradient that stay the same when it is multiplied by a number.

A step by its sign or its direction is: `x + eps * g.sign()`, `g / g.norm()`, `F.normalize(g)`; `x + rate * g` is not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from retrofit.analysis.calls import last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.torch_api.tensors import OPERATORS, SHAPE_ATTRIBUTES, SHAPE_METHODS

WITHOUT_SCALE = frozenset({"sign", "sgn", "sign_", "normalize", "argmax", "argmin", "argsort", "topk", "sort"})
EMPTYING = frozenset({"zero_", "zero_grad", "item"})
HOMOGENEOUS = frozenset({
    "norm", "vector_norm", "abs", "view", "reshape", "flatten", "detach", "detach_", "clone", "sum", "mean", "max",
    "amax", "unsqueeze", "squeeze", "contiguous", "cpu", "cuda", "to", "float", "expand_as", "expand", "clamp",
    "clamp_min", "maximum", "permute", "transpose", "neg", "stack", "cat", "view_as", "where",
})  # fmt: skip
MIXED = float("nan")  # changes in another way; not equal to itself
SMALL = 1e-3  # a number that keeps a divisor from being 0


def is_scale_free(starts: Collection[ast.expr], scope: Scope) -> bool:
    """Return whether nothing that a function computes from gradients, the expressions `starts`, has their scale."""
    known: dict[str, float] = {}
    for _ in range(2):  # what a loop sets is read in its next round
        for statement in own_nodes(scope.node):  # type: ignore[arg-type]
            if isinstance(statement, ast.stmt) and not _is_free(statement, _Degrees(starts, known)):
                return False
    return True


def _is_free(statement: ast.stmt, degrees: _Degrees) -> bool:
    """Return whether a statement uses nothing with the scale of a gradient, but to set a variable, which is noted."""
    if isinstance(statement, ast.Assign):
        degree = degrees.of(statement.value)
        for target in statement.targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            if degree and not all(isinstance(part, ast.Name) for part in parts):
                return False
            degrees.known.update({p.id: degree or 0.0 for p in parts if isinstance(p, ast.Name) and degree is not None})
        return degree is None or degree == degree
    if isinstance(statement, ast.AugAssign):
        whole = ast.BinOp(_loaded(statement.target), statement.op, statement.value)
        degree = degrees.of(whole)
        if isinstance(statement.target, ast.Name) and degree is not None:
            degrees.known[statement.target.id] = degree
        return not degree or (isinstance(statement.target, ast.Name) and degree == degree)
    values = [getattr(statement, name, None) for name in ("value", "test", "iter", "exc")]
    return all(not degrees.of(value) for value in values if isinstance(value, ast.expr))


def _loaded(target: ast.expr) -> ast.expr:
    return ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target


class _Degrees:
    """The power of a factor of the gradients by which an expression is multiplied, None where none is in it."""

    def __init__(self, starts: Collection[ast.expr], known: dict[str, float]) -> None:
        self.starts, self.known = starts, known

    def of(self, node: ast.expr | None) -> float | None:
        if node is None or isinstance(node, ast.Constant):
            return None
        if node in self.starts:
            return 1.0
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return None if node.attr in SHAPE_ATTRIBUTES else self.of(node.value)
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self.of(node.value)
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand)
        if isinstance(node, ast.BinOp):
            return self.operation(node.op, node.left, node.right)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        inner = [self.of(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        found = [degree for degree in inner if degree is not None]
        return None if not found else 0.0 if isinstance(node, ast.Compare) or not any(found) else _common(found)

    def operation(self, op: ast.operator, left: ast.expr, right: ast.expr) -> float | None:
        first, second = self.of(left), self.of(right)
        if first is None and second is None:
            return None
        if isinstance(op, ast.Mult):
            return (first or 0.0) + (second or 0.0)
        if isinstance(op, ast.Div):
            return (first or 0.0) - (second or 0.0)
        if isinstance(op, ast.Pow):
            is_number = isinstance(right, ast.Constant) and isinstance(right.value, (int, float))
            return (first or 0.0) * right.value if is_number else MIXED  # type: ignore[attr-defined, operator]
        if not isinstance(op, (ast.Add, ast.Sub)):
            return MIXED
        for degree, other in ((first, right), (second, left)):
            if degree is not None and _is_small(other):
                return degree
        return first if (first or 0.0) == (second or 0.0) else MIXED

    def _of_call(self, node: ast.Call) -> float | None:
        name = last_name(node)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        operands = [*([receiver] if receiver is not None else []), *node.args, *(k.value for k in node.keywords)]
        inner = [(part, self.of(part)) for part in operands]
        found = [degree for _, degree in inner if degree is not None]
        if not found or name in EMPTYING | SHAPE_METHODS:
            return None
        if name in WITHOUT_SCALE or not any(found):
            return 0.0
        parts = [part for part, degree in inner if degree is not None or part is not receiver]
        if name in OPERATORS and len(parts) > 1:
            return self.operation(OPERATORS[name], parts[0], parts[1])
        if name == "sqrt":
            return found[0] / 2
        return _common(found) if name in HOMOGENEOUS else MIXED


def _common(found: list[float]) -> float:
    return found[0] if len(set(found)) == 1 else MIXED


def _is_small(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and abs(node.value) <= SMALL
    return any(
        "eps" in name.lower() for name in (getattr(part, "id", getattr(part, "attr", "")) for part in walk(node))
    )
