"""The number of samples as a factor of a loss: `loss * len(images)` makes a sum of a mean."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.scopes import Scope
from retrofit.training.data.batch_values import BATCH, CHOSEN, GRADIENT
from retrofit.training.torch_api.tensors import COUNT_METHODS

from ..divisions import without_guard
from . import kinds
from .kinds import Kind

if TYPE_CHECKING:
    from retrofit.training import Project

    from .lists import Lists

SIZE, OTHER, NOTHING = "size", "other", ""  # proportional to the number of samples, another function of it, neither
TIMES_SIZE = {kinds.MEAN: kinds.SUM, kinds.PENALTY: kinds.SUM, kinds.UNKNOWN: kinds.UNKNOWN}
CONVERTING = {"float", "int"}
NUMERIC = {"min", "max", "round", "sqrt", "pow", "log", "abs", "ceil", "floor"}
MOST_DEPTH = 12


class SizeFactors:
    """Answers how a factor depends on the number of samples in a batch."""

    def __init__(self, project: Project, lists: Lists) -> None:
        self._values, self._lists = project.batch_values, lists

    def multiplied(self, kind: Kind, factor: ast.expr, scope: Scope) -> Kind | None:
        """Return the kind of a loss times a factor that is computed from the number of samples; None for others."""
        what = self.of(factor, scope)
        if what == NOTHING or not kind.parts:
            return None
        if what == SIZE and kind.parts == {kinds.PER}:
            return kinds.CONSTANT
        if what == SIZE and kind.parts == {kinds.SHARE}:
            return replace(kind, parts=frozenset([kinds.ROWS]))
        if what == SIZE and kind.parts <= TIMES_SIZE.keys():
            return replace(kind, parts=frozenset(TIMES_SIZE[part] for part in kind.parts))
        return replace(kind, parts=frozenset([kinds.UNKNOWN]), coupled=kind.coupled | kind.leaves)

    def of(self, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> str:
        """Return SIZE for what is proportional to the number of samples, OTHER for another function of it."""
        if depth == 0:
            return NOTHING
        length = self._length(node, scope)
        if length != NOTHING:
            return length
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and _is_zero(node.slice):
            shapes = ((_first(part), where) for part, where in _values(node.value, scope))
            found = {self.of(*place, depth - 1) for place in shapes}
            return found.pop() if len(found) == 1 else NOTHING
        if isinstance(node, ast.Name):
            found = {self.of(*place, depth - 1) for place in _values(node, scope)}
            return found.pop() if len(found) == 1 else OTHER if found - {NOTHING} else NOTHING
        if isinstance(node, ast.BinOp):
            left, right = self.of(node.left, scope, depth - 1), self.of(node.right, scope, depth - 1)
            return _of_operation(node.op, left, right)
        if isinstance(node, ast.UnaryOp):
            return self.of(node.operand, scope, depth - 1)
        if isinstance(node, ast.IfExp):
            found = {self.of(part, scope, depth - 1) for part in (node.body, node.orelse)}
            return found.pop() if len(found) == 1 else OTHER
        if isinstance(node, ast.Call) and last_name(node) in CONVERTING and len(node.args) == 1:
            return self.of(node.args[0], scope, depth - 1)
        if isinstance(node, ast.Call) and last_name(node) in NUMERIC:
            return OTHER if any(self.of(part, scope, depth - 1) for part in node.args) else NOTHING
        return NOTHING

    def is_corrected(self, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
        """Return whether a divisor is the number of samples but for a term: `len(x) - 1`."""
        node = without_guard(node)
        if isinstance(node, ast.Name) and depth:
            return any(self.is_corrected(*place, depth - 1) for place in _values(node, scope))
        if not isinstance(node, ast.BinOp):
            return False
        parts = (node.left, node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return any(self.of(part, scope) != NOTHING for part in parts)
        return isinstance(node.op, ast.Mult) and any(self.is_corrected(part, scope, depth - 1) for part in parts)

    def _length(self, node: ast.expr, scope: Scope) -> str:
        """Return SIZE for the length of a batch, OTHER for one that may be that of a batch; NOTHING elsewhere."""
        tensor, is_sure = _measured(node)
        if tensor is None or BATCH not in (sources := self._values.sources_of(tensor, scope)):
            return NOTHING
        if not is_sure and self._lists.is_fixed(node, scope):
            return NOTHING
        is_whole = isinstance(tensor, (ast.Name, ast.Attribute)) or _is_named_item(tensor)
        if CHOSEN in sources or not is_whole or (GRADIENT in sources and not is_sure):
            return OTHER
        return SIZE


def _measured(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return what `len(x)`, `x.size(0)`, `x.shape[0]` and `x.numel()` measure; and whether that is surely a tensor."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            return node.args[0], False
        if isinstance(node.func, ast.Attribute):
            is_first = node.func.attr == "size" and len(node.args) == 1 and _is_zero(node.args[0])
            if is_first or (node.func.attr in COUNT_METHODS and not node.args):
                return node.func.value, True
    if isinstance(node, ast.Subscript) and _is_zero(node.slice):
        shape = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else node.value
        if isinstance(shape, ast.Attribute) and shape.attr == ("size" if shape is not node.value else "shape"):
            return shape.value, True
    return None, False


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def _is_named_item(node: ast.expr) -> bool:
    """Return whether this is `batch["images"]`; what `batch[0]` is, a tensor or a sample, is not known."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )


def _values(node: ast.Name, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    owner, bindings = live_bindings(node, scope)
    for binding in bindings:
        if binding.kind == "value" and binding.value is not None and not isinstance(binding.node, ast.AugAssign):
            part = binding.value
            if not binding.path:
                yield part, owner
            elif isinstance(part, ast.Attribute) and part.attr == "shape" and binding.path == (0,):
                yield _first(part), owner


def _first(shape: ast.expr) -> ast.Subscript:
    return ast.copy_location(ast.Subscript(shape, ast.Constant(0), ast.Load()), shape)


def _of_operation(op: ast.operator, left: str, right: str) -> str:
    if left == right == NOTHING:
        return NOTHING
    if isinstance(op, ast.Mult) and NOTHING in (left, right):
        return left or right
    if isinstance(op, ast.Div) and right == NOTHING:
        return left
    return OTHER
