"""Divisions of a training loss by something of the batch, its size or a number of elements that count; tests of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, Part, functions_run, is_followed, sources
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.data import ROWS_OF_GRAPHS
from retrofit.training.torch_api.runtime import CHOSEN_MEAN, RANK_SHARE
from retrofit.training.torch_api.tensors import (
    ARRAY_PACKAGES,
    CLAMPS,
    CONVERTS,
    COUNT_METHODS,
    READS,
    RESHAPES,
    SAME_ENTRIES,
    TENSOR_CLASSES,
)

from ..data.batch_values import BATCH, GRADIENT, BatchValues
from ..distributed.distribution import Distribution, leads_to_collective
from ..evaluation.measurements import is_collected, name_in, spread
from .terms import MEAN, terms_at

if TYPE_CHECKING:
    from retrofit.training import Project

SUM = "sum"
SIZE, COUNT, RATIO = "size", "count", "ratio"  # of the batch; of some of its elements; of what a model makes of it
NOTHING, UNKNOWN = "", "?"  # nothing of the batch
SAME = SAME_ENTRIES | READS | RESHAPES
MULTIPLIES = {"mul", "mul_", "multiply", "multiply_"}
DIVIDES = {"div", "div_", "true_divide", "true_divide_"}
NUMBERS = CONVERTS | {"float", "int", "array", "asarray", "float32", "float64", "int64"}
PRODUCTS = {"prod"}  # of numpy, math and torch
Divided = Union[ast.BinOp, ast.AugAssign, ast.Call]


@dataclass(frozen=True)
class Division:
    """A loss, MEAN or SUM over the batch of a process, that is divided by its SIZE, a COUNT or a RATIO's other part.

    Or by something UNKNOWN of the batch. Of a loss that is UNKNOWN the division by a COUNT. `node` is a product where
    the loss is multiplied by 1 / n.
    """

    node: Divided
    scope: Scope
    loss: str
    kind: str
    dividend: ast.expr
    divisor: ast.expr
    count: ast.expr  # in the divisor, without what keeps it from being 0
    is_settled: bool  # whether every process comes here: no test on the batch decides about it
    is_alone: bool  # whether nothing else is divided by the divisor in its place
    is_in_loop: bool  # over something of a batch: its samples, or what a model makes of it


def find_divisions(
    analysis: Analysis, parts: Iterable[tuple[Part, Scope]], values: BatchValues, distribution: Distribution
) -> Iterator[Division]:
    """Yield the divisions among what losses are computed by."""
    reader = Reader(analysis, values, distribution)
    for node, scope in parts:
        for loss, divisor, is_alone in _divided_or_weighed(reader, node, scope):
            kind = reader.kind_of(divisor, scope)
            over = reader.over(loss, scope) if kind != NOTHING else NOTHING
            if over in (MEAN, SUM) or (over == UNKNOWN and kind == COUNT):
                count = without_guard(divisor)
                place = (values.is_settled(node, scope), is_alone, bool(values.loops_around(node, scope)))
                yield Division(node, scope, over, kind, loss, divisor, count, *place)  # type: ignore[arg-type]


def _divided_or_weighed(reader: Reader, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield what is divided by what, also as `loss * (1 / n)`, and whether nothing else is divided by that."""
    pair = divided(reader.analysis, node, scope)
    if pair is not None:
        yield *pair, True
    for factor, other in _factors(reader.analysis, node, scope):
        found = inverted(factor, scope)
        if found is not None and reader.kind_of(found[0], scope) == NOTHING:
            yield other, found[1], found[2]


def _factors(analysis: Analysis, node: ast.AST, scope: Scope) -> list[tuple[ast.expr, ast.expr]]:
    """Return each factor of a product, with the other one."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Mult):
        pair = (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
    elif isinstance(node, ast.Call) and last_name(node) in MULTIPLIES and not node.keywords:
        is_method = isinstance(node.func, ast.Attribute) and "torch" not in analysis.named(node.func.value, scope)
        given = [node.func.value, *node.args] if is_method else node.args  # type: ignore[attr-defined]
        if len(given) != 2:
            return []
        pair = (given[0], given[1])
    else:
        return []
    return [pair, (pair[1], pair[0])]


def divided(analysis: Analysis, node: ast.AST, scope: Scope) -> tuple[ast.expr, ast.expr] | None:
    """Return what is divided by what: loss / n, loss /= n, loss.div(n), torch.div(loss, n)."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
        return (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
    if not isinstance(node, ast.Call) or last_name(node) not in DIVIDES or node.keywords:
        return None
    is_method = isinstance(node.func, ast.Attribute) and "torch" not in analysis.named(node.func.value, scope)
    given = [node.func.value, *node.args] if is_method else node.args  # type: ignore[attr-defined]
    return (given[0], given[1]) if len(given) == 2 else None


def total_in(project: Project, test: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the count of a batch by which a test decides, `count` of count > 0 and `mask.any()`; None for other tests.

    A process that counts its own samples alone may decide otherwise than the others do.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return total_in(project, test.operand, scope)
    if isinstance(test, ast.BoolOp):  # a setting next to the count
        parts = [part for part in test.values if project.batch_values.sources_of(part, scope)]
        return total_in(project, parts[0], scope) if len(parts) == 1 else None
    if project.distribution.is_by_hand:
        return None
    count: ast.expr = test
    if isinstance(test, ast.Compare):
        if len(test.ops) != 1 or not isinstance(test.comparators[0], ast.Constant):
            return None
        if isinstance(test.ops[0], (ast.Is, ast.IsNot)):
            return None
        count = test.left
    analysis = project.analysis
    reader = analysis.fact("counts", lambda: Reader(analysis, project.batch_values, project.distribution))
    return count if reader.kind_of(count, scope) == COUNT else None


def converted(call: ast.Call) -> ast.expr | None:
    """Return the number in float(n), torch.tensor(n), np.float32(n) and torch.FloatTensor([n]); None for other calls.

    torch.FloatTensor(n) is a tensor of n entries.
    """
    name, first = last_name(call), call.args[0] if call.args else None
    is_list = isinstance(first, (ast.List, ast.Tuple)) and len(first.elts) == 1
    if first is None or not (name in NUMBERS or (name in TENSOR_CLASSES and is_list)):
        return None
    return first.elts[0] if is_list else first  # type: ignore[attr-defined]


def multiplied(call: ast.Call) -> ast.expr | None:
    """Return the shape whose entries np.prod(x.shape) and math.prod(list(x.size())) multiply; None for others."""
    shape = call.args[0] if last_name(call) in PRODUCTS and len(call.args) == 1 and not call.keywords else None
    while isinstance(shape, ast.Call) and len(shape.args) == 1 and last_name(shape) in NUMBERS | {"list", "tuple"}:
        shape = shape.args[0]
    return shape


def counted(call: ast.Call) -> ast.expr | None:
    """Return the tensor of which x.numel() and torch.numel(x) are the number of entries; None for other calls.

    Of x.shape.numel() it is x.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in COUNT_METHODS or len(call.args) > 1:
        return None
    tensor = call.args[0] if call.args else call.func.value
    shape = tensor.func if isinstance(tensor, ast.Call) and not tensor.args else tensor
    is_shape = isinstance(shape, ast.Attribute) and shape.attr == ("shape" if shape is tensor else "size")
    return shape.value if is_shape else tensor  # type: ignore[attr-defined]


def inverted(node: ast.expr, scope: Scope) -> tuple[ast.expr, ast.expr, bool] | None:
    """Return what is divided by what in a factor that is 1 / n, also n ** -1, and whether it is a factor only here.

    A variable is followed to the one expression that it is; read again, it is a factor elsewhere, too.
    """
    inner: ast.expr | None = node
    names: set[str] = set()
    while inner is not None and not isinstance(inner, ast.BinOp):
        if isinstance(inner, ast.Name) and inner.id not in names:
            names.add(inner.id)
            inner = scope.only_value(inner.id)
        elif isinstance(inner, ast.UnaryOp):
            inner = inner.operand
        else:
            inner = converted(inner) if isinstance(inner, ast.Call) else None
    if inner is not None and isinstance(inner.op, ast.Div):
        pair = inner.left, inner.right
    elif inner is not None and isinstance(inner.op, ast.Pow) and ast.unparse(inner.right) in ("-1", "-1.0"):
        pair = ast.Constant(1), inner.left
    else:
        return None
    read = [part.id for part in own_nodes(scope.node).of(ast.Name)] if names else []
    return *pair, all(read.count(name) == 2 for name in names)  # where it is set, and here


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
        self._overs: Memory[str] = Memory(NOTHING, UNKNOWN)
        self._kinds: Memory[str] = Memory(NOTHING, UNKNOWN)

    def over(self, node: ast.expr, scope: Scope) -> str:
        """Return how a loss is made of the losses of single samples: MEAN, SUM, NOTHING of the batch or UNKNOWN."""
        return self._over_of(Origin(node, scope))

    def kind_of(self, node: ast.expr, scope: Scope) -> str:
        """Return what of the batch a divisor is: NOTHING too where all processes have counted together."""
        return self._kind_at(Origin(node, scope))

    def _over_of(self, origin: Origin) -> str:
        return self._overs.once(origin, lambda: self._over(origin))

    def _kind_at(self, origin: Origin) -> str:
        return self._kinds.once(origin, lambda: self._kind_of_batch(origin))

    def _kind_of_batch(self, origin: Origin) -> str:
        """Return what of the batch a divisor is; of what is only in a list of the batch its size alone."""
        kind = self._kind(origin)
        if kind in (COUNT, RATIO) and BATCH not in self.values.sources_of(origin.node, origin.scope):  # type: ignore[arg-type]
            return NOTHING
        return kind

    def _over(self, origin: Origin) -> str:
        node, scope, _ = origin
        if isinstance(node, ast.AugAssign):
            return self._over_change(node, origin)
        if not is_followed(node):
            return UNKNOWN
        if not self.values.sources_of(node, scope, stored=True):
            return NOTHING
        if isinstance(node, ast.UnaryOp):
            return self._over_of(origin.to(node.operand))
        if isinstance(node, ast.BinOp):
            left, right = self._over_of(origin.to(node.left)), self._over_of(origin.to(node.right))
            if isinstance(node.op, (ast.Add, ast.Sub)):
                return _common([left, right])
            if isinstance(node.op, ast.Mult):
                return _common([left, right]) if NOTHING in (left, right) else UNKNOWN
            if isinstance(node.op, ast.Div):
                return self._over_divided(left, self.kind_of(node.right, scope))
        return self._over_call(node, origin) if isinstance(node, ast.Call) else self._over_sources(origin)

    @staticmethod
    def _over_divided(over: str, kind: str) -> str:
        return over if NOTHING in (kind, over) else MEAN if over == SUM and kind in (SIZE, COUNT) else UNKNOWN

    def _over_sources(self, origin: Origin) -> str:
        found = [] if self._is_drawn(origin) else list(sources(self.analysis, origin))
        return _common(map(self._over_of, found)) if found else UNKNOWN

    def _over_change(self, node: ast.AugAssign, origin: Origin) -> str:
        """Return what `loss += x` adds to a loss."""
        if not isinstance(node.op, (ast.Add, ast.Sub)):
            return NOTHING
        return UNKNOWN if self.values.loops_around(node, origin.scope) else self._over_of(origin.to(node.value))

    def _over_call(self, node: ast.Call, origin: Origin) -> str:
        scope = origin.scope
        terms = terms_at(self.analysis, node, scope)
        if terms:
            return _common({MEAN: MEAN, SUM: SUM}.get(term.reduction, UNKNOWN) for term in terms)
        pair = divided(self.analysis, node, scope)
        if pair is not None:
            return self._over_divided(self._over_of(origin.to(pair[0])), self.kind_of(pair[1], scope))
        if CHOSEN_MEAN in self.analysis.called(node, scope):
            return MEAN
        if functions_run(self.analysis, node, scope) or not isinstance(node.func, ast.Attribute):
            return self._over_sources(origin)
        is_torch = "torch" in self.analysis.named(node.func.value, scope)
        given = node.args[:1] if is_torch else [node.func.value]
        if node.func.attr in SAME and not is_torch:
            return self._over_of(origin.to(node.func.value))
        if node.func.attr not in (SUM, MEAN):
            return self._over_sources(origin)
        if node.keywords or len(node.args) != (1 if is_torch else 0):
            return UNKNOWN
        return UNKNOWN if _is_stack(given[0]) else node.func.attr

    def _is_drawn(self, origin: Origin) -> bool:
        """Return whether this is what a batch is made of: what it holds is not known."""
        node, scope, _ = origin
        if isinstance(node, ast.Call):
            return last_name(node) == "next"
        bindings = live_bindings(node, scope)[1] if isinstance(node, ast.Name) else []
        return any(self.values.is_batch(binding) for binding in bindings)

    def _kind(self, origin: Origin) -> str:
        node, scope, keys = origin
        if isinstance(node, ast.AugAssign):
            return self._kind_at(origin.to(node.value)) if isinstance(node.op, ast.Add) else UNKNOWN
        if not is_followed(node):
            return UNKNOWN
        node = without_guard(node)
        if BATCH not in self.values.sources_of(node, scope, stored=True):
            return NOTHING
        if isinstance(node, ast.Name) and is_collected(
            self.analysis, self.distribution, spread(scope, {name_in(node)})
        ):
            return NOTHING
        if isinstance(node, ast.BinOp):
            kinds = [self._kind_at(origin.to(part)) for part in (node.left, node.right)]
            first = next((kind for kind in (UNKNOWN, RATIO, COUNT, SIZE) if kind in kinds), NOTHING)
            return first if first == NOTHING or isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)) else UNKNOWN
        if isinstance(node, ast.Attribute) and node.attr in ROWS_OF_GRAPHS:
            return self._size(node, scope)
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return self._kind_at(origin.to(node.value))
        if keys and _is_shape(node):  # x.shape[0], n, c = x.size()
            return self._size(node, scope) if keys[0] == 0 else NOTHING
        if isinstance(node, ast.Call):
            return self._kind_of_call(node, origin)
        return self._kind_of_sources(origin.to(node))

    def _kind_of_sources(self, origin: Origin) -> str:
        found = [] if self._is_drawn(origin) else list(sources(self.analysis, origin))
        kinds = set(map(self._kind_at, found)) - {NOTHING}
        return COUNT if kinds == {SIZE, COUNT} else _common(kinds) if found else UNKNOWN

    def _size(self, node: ast.expr, scope: Scope) -> str:
        return COUNT if self.values.has_chosen_rows(node, scope) else SIZE

    def _kind_of_call(self, node: ast.Call, origin: Origin) -> str:
        scope = origin.scope
        if leads_to_collective(self.analysis, self.distribution, node, scope):
            return NOTHING
        name, first = last_name(node), node.args[0] if node.args else None
        if name == "len" or name in COUNT_METHODS:
            return self._size(node, scope)
        if name == "size":
            return self._size(node, scope) if isinstance(first, ast.Constant) and first.value == 0 else NOTHING
        number = first if RANK_SHARE in self.analysis.called(node, scope) else converted(node)
        if number is not None:
            return self._kind_at(origin.to(number))
        shape = multiplied(node)
        if shape is not None:
            return self._kind_at(Origin(shape, scope, (0,)))
        is_builtin = isinstance(node.func, ast.Name)
        if name == SUM and is_builtin and isinstance(first, (ast.GeneratorExp, ast.ListComp)):
            is_counted = isinstance(first.elt, ast.Call) or self.kind_of(first.elt, scope) in (SIZE, COUNT)
            return COUNT if is_counted else UNKNOWN
        is_torch = not is_builtin and not self.analysis.named(node.func.value, scope).isdisjoint(ARRAY_PACKAGES)  # type: ignore[attr-defined]
        is_whole = not node.keywords and len(node.args) == (1 if is_torch or is_builtin else 0)
        if name in (SUM, "count_nonzero", "any") and is_whole:
            return RATIO if GRADIENT in self.values.sources_of(node, scope) else COUNT
        if name in SAME and isinstance(node.func, ast.Attribute) and not is_torch:
            return self._kind_at(origin.to(node.func.value))
        return self._kind_of_sources(origin)


def _common(kinds: Iterable[str]) -> str:
    """Return what all of these are that are something of the batch, UNKNOWN where they differ."""
    found = set(kinds) - {NOTHING}
    return found.pop() if len(found) == 1 else UNKNOWN if found else NOTHING


def _is_stack(node: ast.expr) -> bool:
    """Return whether this puts losses side by side: torch.stack(losses)."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("stack", "cat", "tensor")


def _is_shape(node: ast.expr) -> bool:
    return last_name(node) == ("size" if isinstance(node, ast.Call) else "shape") and not isinstance(node, ast.Name)
