"""The number of samples as a factor of a loss: `loss * len(images)` makes a sum of a mean."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.keys import has_no_entry
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import Scope
from retrofit.training.data.batch_values import BATCH, CHOSEN, GRADIENT

from ..divisions import converted, counted, multiplied, without_guard
from . import kinds
from .kinds import Kind

if TYPE_CHECKING:
    from retrofit.training import Project

    from .lists import Lists

SIZE, OTHER, NOTHING = "size", "other", ""  # proportional to the number of samples, another function of it, neither
TIMES_SIZE = {kinds.MEAN: kinds.SUM, kinds.PENALTY: kinds.SUM, kinds.UNKNOWN: kinds.UNKNOWN}
NUMERIC = {"min", "max", "round", "sqrt", "pow", "log", "abs", "ceil", "floor"}


class SizeFactors:
    """Answers how a factor depends on the number of samples in a batch."""

    def __init__(self, project: Project, lists: Lists) -> None:
        self._analysis, self._values, self._lists = project.analysis, project.batch_values, lists
        self._known: Memory[str] = Memory(NOTHING, OTHER)

    def multiplied(self, kind: Kind, factor: ast.expr, scope: Scope) -> Kind | None:
        """Return the kind of a loss times 0, or times what is computed from the number of samples; None for others."""
        if _is_zero(factor):  # a loss of nothing that can learn: x.sum() * 0
            return kinds.CONSTANT
        what = self.of(factor, scope)
        if what == NOTHING or not kind.parts:
            return None
        if kind.parts == {kinds.GLOBAL}:
            return kind  # next to gathered rows the samples of all ranks are counted
        if what == SIZE and kind.parts == {kinds.PER}:
            return kinds.CONSTANT
        if what == SIZE and kind.parts == {kinds.SHARE}:
            return replace(kind, parts=frozenset([kinds.ROWS]))
        if what == SIZE and kind.parts <= TIMES_SIZE.keys():
            return replace(kind, parts=frozenset(TIMES_SIZE[part] for part in kind.parts))
        own = frozenset([(factor, scope)]) if kind.has_rows else frozenset[kinds.Leaf]()
        scaled, coupled = (own, kind.leaves) if what == SIZE else (frozenset[kinds.Leaf](), kind.leaves | own)
        unknown = frozenset([kinds.UNKNOWN])
        return replace(kind, parts=unknown, coupled=kind.coupled | coupled, scaled=kind.scaled | scaled)

    def of(self, node: ast.expr, scope: Scope) -> str:
        """Return SIZE for what is proportional to the number of samples, OTHER for another function of it."""
        return self._at(Origin(node, scope))

    def is_corrected(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a divisor is the number of samples but for a term: `len(x) - 1`."""
        return any(self._has_term(origin) for origin in origins(self._analysis, [Origin(node, scope)], _factors))

    def _has_term(self, origin: Origin) -> bool:
        node = origin.node
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
            return False
        return without_guard(node) is node and any(self._at(origin.to(part)) for part in (node.left, node.right))

    def _at(self, origin: Origin) -> str:
        return self._known.once(origin, lambda: self._of(origin))

    def _of(self, origin: Origin) -> str:
        node = origin.node
        if isinstance(node, ast.AugAssign):
            return NOTHING
        length = self._length(origin)
        if length != NOTHING:
            return length
        if has_no_entry(node, origin.keys):
            return NOTHING
        if isinstance(node, ast.BinOp):
            return _of_operation(node.op, *(self._at(origin.to(part)) for part in (node.left, node.right)))
        if isinstance(node, ast.UnaryOp):
            return self._at(origin.to(node.operand))
        if isinstance(node, ast.Call) and (number := converted(node)) is not None:
            return self._at(origin.to(number))
        if isinstance(node, ast.Call) and (shape := multiplied(node)) is not None:
            return self._at(Origin(shape, origin.scope, (0,)))
        if isinstance(node, ast.Call) and last_name(node) in NUMERIC:
            return OTHER if any(self._at(origin.to(part)) for part in node.args) else NOTHING
        found = {self._at(inner) for inner in sources(self._analysis, origin)}
        return found.pop() if len(found) == 1 else OTHER if found - {NOTHING} else NOTHING

    def _length(self, origin: Origin) -> str:
        """Return SIZE for the length of a batch, OTHER for one that may be that of a batch; NOTHING elsewhere."""
        tensor, is_sure = _measured(origin)
        if tensor is None or BATCH not in (sources := self._values.sources_of(tensor, origin.scope)):
            return NOTHING
        if not is_sure and self._lists.is_fixed(origin.node, origin.scope):  # type: ignore[arg-type]
            return NOTHING
        is_whole = isinstance(tensor, (ast.Name, ast.Attribute)) or _is_named_item(tensor)
        if CHOSEN in sources or not is_whole or (GRADIENT in sources and not is_sure):
            return OTHER
        return SIZE


def _factors(origin: Origin) -> list[Origin] | None:
    """Return the factors of a product, and a number without what keeps it from being 0."""
    node = origin.node
    if isinstance(node, ast.AugAssign) or without_guard(node) is not node:
        return [] if isinstance(node, ast.AugAssign) else [origin.to(without_guard(node))]
    if isinstance(node, ast.BinOp):
        return [origin.to(part) for part in (node.left, node.right)] if isinstance(node.op, ast.Mult) else []
    return None if isinstance(node, ast.Name) else []


def _measured(origin: Origin) -> tuple[ast.expr | None, bool]:
    """Return what `len(x)`, `x.size(0)`, `x.shape[0]` and `x.numel()` measure; and whether that is surely a tensor."""
    node, keys = origin.node, origin.keys
    if isinstance(node, ast.Call) and not keys:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            return node.args[0], False
        if isinstance(node.func, ast.Attribute):
            is_first = node.func.attr == "size" and len(node.args) == 1 and _is_zero(node.args[0])
            if is_first or counted(node) is not None:
                return (node.func.value if is_first else counted(node)), True
    shape = node.func if isinstance(node, ast.Call) and not node.args else node
    if keys == (0,) and isinstance(shape, ast.Attribute):
        return (shape.value, True) if shape.attr == ("shape" if shape is node else "size") else (None, False)
    return None, False


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def _is_named_item(node: ast.expr) -> bool:
    """Return whether this is `batch["images"]`; what `batch[0]` is, a tensor or a sample, is not known."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )


def _of_operation(op: ast.operator, left: str, right: str) -> str:
    if left == right == NOTHING:
        return NOTHING
    if isinstance(op, ast.Mult) and NOTHING in (left, right):
        return left or right
    if isinstance(op, ast.Div) and right == NOTHING:
        return left
    return OTHER
