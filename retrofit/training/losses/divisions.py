"""Divisions of a training loss by something of the batch: its size, or a number of elements that count."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Union

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.bindings import given_for
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Part, functions_run
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import CLAMPS, COUNT_METHODS, READS, RESHAPES, SAME_ENTRIES

from ..data.batch_values import BATCH, CHOSEN, GRADIENT, BatchValues
from ..distributed.distribution import Distribution, leads_to_collective
from ..evaluation.measurements import is_collected, name_in, spread
from .terms import MEAN, terms_at

SUM = "sum"
SIZE, COUNT, RATIO = "size", "count", "ratio"  # of the batch; of some of its elements; of what a model makes of it
NOTHING, UNKNOWN = "", "?"  # nothing of the batch
SAME = SAME_ENTRIES | READS | RESHAPES
Divided = Union[ast.BinOp, ast.AugAssign]


@dataclass(frozen=True)
class Division:
    """A loss, MEAN or SUM over the batch of a process, that is divided by its SIZE, a COUNT or a RATIO's other part.

    Of one that is UNKNOWN the division by a COUNT.
    """

    node: Divided
    scope: Scope
    loss: str
    kind: str
    divisor: ast.expr
    count: ast.expr  # in the divisor, without what keeps it from being 0
    is_settled: bool  # whether every process comes here: no test on the batch decides about it


def find_divisions(
    analysis: Analysis, parts: Iterable[tuple[Part, Scope]], values: BatchValues, distribution: Distribution
) -> Iterator[Division]:
    """Yield the divisions among what losses are computed by."""
    reader = Reader(analysis, values, distribution)
    for node, scope in parts:
        if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Div):
            continue
        loss, divisor = (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
        kind = reader.kind_of(divisor, scope)
        if kind in (SIZE, COUNT, RATIO) and not values.loops_around(node, scope):
            over = reader.over(loss, scope)
            if over in (MEAN, SUM) or (over == UNKNOWN and kind == COUNT):
                count = without_guard(divisor)
                yield Division(node, scope, over, kind, divisor, count, values.is_settled(node, scope))


def without_guard(node: ast.expr) -> ast.expr:
    """Return `count` of count.clamp(min=1), count + eps and max(count, 1), which keep it from being 0."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        is_small = isinstance(node.right, (ast.Constant, ast.Name, ast.Attribute))
        return without_guard(node.left) if is_small else node
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # count or 1
        return without_guard(node.values[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLAMPS:
        is_function = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch" and node.args
        return without_guard(node.args[0] if is_function else node.func.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max" and len(node.args) == 2:
        return without_guard(next((part for part in node.args if not isinstance(part, ast.Constant)), node.args[0]))
    return node


class Reader:
    """Answers what a loss is over, and what of the batch a divisor is."""

    def __init__(self, analysis: Analysis, values: BatchValues, distribution: Distribution) -> None:
        self.analysis, self.values, self.distribution = analysis, values, distribution
        self.open: set[tuple[ast.AST, str]] = set()

    def over(self, node: ast.expr, scope: Scope) -> str:
        """Return how a loss is made of the losses of single samples: MEAN, SUM, NOTHING of the batch or UNKNOWN."""
        if (node, "over") in self.open:
            return NOTHING
        if not self.values.sources_of(node, scope):
            return NOTHING
        self.open.add((node, "over"))
        found = self._over(node, scope)
        self.open.discard((node, "over"))
        return found

    def _over(self, node: ast.expr, scope: Scope) -> str:
        if isinstance(node, ast.Name):
            return _common(self._over_name(node, scope))
        if isinstance(node, (ast.UnaryOp, ast.IfExp)):
            parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.body, node.orelse]
            return _common(self.over(part, scope) for part in parts)
        if isinstance(node, ast.BinOp):
            left, right = self.over(node.left, scope), self.over(node.right, scope)
            if isinstance(node.op, (ast.Add, ast.Sub)):
                return _common([left, right])
            if isinstance(node.op, ast.Mult):
                return _common([left, right]) if NOTHING in (left, right) else UNKNOWN
            if isinstance(node.op, ast.Div):
                kind = self.kind_of(node.right, scope)
                return left if NOTHING in (kind, left) else MEAN if left == SUM and kind in (SIZE, COUNT) else UNKNOWN
        return self._over_call(node, scope) if isinstance(node, ast.Call) else UNKNOWN

    def _over_name(self, node: ast.Name, scope: Scope) -> Iterator[str]:
        owner, bindings = live_bindings(node, scope)
        for binding in bindings:
            if isinstance(binding.node, ast.AugAssign):
                if isinstance(binding.node.op, (ast.Add, ast.Sub)):
                    yield (
                        UNKNOWN
                        if self.values.loops_around(binding.node, owner)
                        else self.over(binding.node.value, owner)
                    )
            elif binding.kind == "value" and (part := part_of(binding)) is not None:
                yield self.over(part, owner)
            else:
                yield UNKNOWN

    def _over_call(self, node: ast.Call, scope: Scope) -> str:
        terms = terms_at(self.analysis, node, scope)
        if terms:
            return _common({MEAN: MEAN, SUM: SUM}.get(term.reduction, UNKNOWN) for term in terms)
        functions = functions_run(self.analysis, node, scope)
        if functions:
            return _common(self.over(value, f.scope) for f in functions for value in returns_of(f.node))
        if not isinstance(node.func, ast.Attribute):
            return UNKNOWN
        is_torch = "torch" in self.analysis.named(node.func.value, scope)
        given = node.args[:1] if is_torch else [node.func.value]
        if node.func.attr in SAME and not is_torch:
            return self.over(node.func.value, scope)
        if node.func.attr not in (SUM, MEAN) or node.keywords or len(node.args) != (1 if is_torch else 0):
            return UNKNOWN
        return UNKNOWN if _is_stack(given[0]) else node.func.attr

    def kind_of(self, node: ast.expr, scope: Scope) -> str:
        """Return what of the batch a divisor is: NOTHING too where all processes have counted together."""
        if (node, "kind") in self.open:
            return NOTHING
        self.open.add((node, "kind"))
        found = self._kind_of(without_guard(node), scope)
        self.open.discard((node, "kind"))
        return found

    def _kind_of(self, node: ast.expr, scope: Scope) -> str:
        if BATCH not in self.values.sources_of(node, scope):
            return NOTHING
        if isinstance(node, ast.Name):
            known = spread(scope, {name_in(node)})
            if is_collected(self.analysis, self.distribution, known):
                return NOTHING
            return _common(self._kinds_of_name(node, scope))
        if isinstance(node, ast.BinOp):
            kinds = [self.kind_of(part, scope) for part in (node.left, node.right)]
            first = next((kind for kind in (UNKNOWN, RATIO, COUNT, SIZE) if kind in kinds), NOTHING)
            return first if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)) else UNKNOWN
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return self.kind_of(node.value, scope)
        if isinstance(node, ast.Subscript):
            return self._of_shape(node.value, scope, node.slice.value if isinstance(node.slice, ast.Constant) else None)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node, scope)
        return UNKNOWN

    def _kinds_of_name(self, node: ast.Name, scope: Scope) -> Iterator[str]:
        owner, bindings = live_bindings(node, scope)
        for binding in bindings:
            if isinstance(binding.node, ast.AugAssign):
                yield self.kind_of(binding.node.value, owner) if isinstance(binding.node.op, ast.Add) else UNKNOWN
            elif binding.kind == "value" and binding.value is not None:
                is_part = bool(binding.path)
                yield (
                    self._of_shape(binding.value, owner, binding.path[0])
                    if is_part
                    else self.kind_of(binding.value, owner)
                )
            elif binding.kind == "parameter":
                yield from (self.kind_of(*place) for place in given_for(self.analysis, binding.name, owner))
            else:
                yield UNKNOWN

    def _of_shape(self, node: ast.expr, scope: Scope, index: object) -> str:
        """Return what `x.shape[index]` or `x.size()[index]` is."""
        is_size = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size"
        if not (is_size or (isinstance(node, ast.Attribute) and node.attr == "shape")):
            return UNKNOWN
        return self._size(node, scope) if index == 0 else NOTHING

    def _size(self, node: ast.expr, scope: Scope) -> str:
        return COUNT if CHOSEN in self.values.sources_of(node, scope) else SIZE

    def _kind_of_call(self, node: ast.Call, scope: Scope) -> str:
        if leads_to_collective(self.analysis, self.distribution, node, scope):
            return NOTHING
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0] if node.args else None
        if name == "len" or name in COUNT_METHODS:
            return self._size(node, scope)
        if name == "size":
            return self._size(node, scope) if isinstance(first, ast.Constant) and first.value == 0 else NOTHING
        if name in ("float", "int") and first is not None:
            return self.kind_of(first, scope)
        if name == SUM and isinstance(node.func, ast.Name) and isinstance(first, (ast.GeneratorExp, ast.ListComp)):
            return (
                COUNT if self.kind_of(first.elt, scope) in (SIZE, COUNT) or isinstance(first.elt, ast.Call) else UNKNOWN
            )
        is_torch = isinstance(node.func, ast.Attribute) and "torch" in self.analysis.named(node.func.value, scope)
        if name in (SUM, "count_nonzero") and not node.keywords and len(node.args) == (1 if is_torch else 0):
            return RATIO if GRADIENT in self.values.sources_of(node, scope) else COUNT
        if name in SAME and isinstance(node.func, ast.Attribute) and not is_torch:
            return self.kind_of(node.func.value, scope)
        functions = functions_run(self.analysis, node, scope)
        returned = [self.kind_of(value, f.scope) for f in functions for value in returns_of(f.node)]
        return _common(returned) if returned else UNKNOWN


def _common(kinds: Iterable[str]) -> str:
    """Return what all of these are that are something of the batch, UNKNOWN where they differ."""
    found = set(kinds) - {NOTHING}
    return found.pop() if len(found) == 1 else UNKNOWN if found else NOTHING


def _is_stack(node: ast.expr) -> bool:
    """Return whether this puts losses side by side: torch.stack(losses)."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("stack", "cat", "tensor")
