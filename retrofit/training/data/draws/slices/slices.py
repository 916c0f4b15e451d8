"""Batches that are slices, one after another: `order[i : i + size]` for i in range(0, n, size)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.parameters import given_for
from retrofit.analysis.flow.sources import closure, functions_run
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.torch_api.data import NUMBERS

from ...shards import is_same

Place = tuple[ast.expr, Scope]
ROUNDING = frozenset({"min", "int"})


@dataclass(frozen=True)
class Slice:
    """A slice of a batch; `sizes` are the reads of the batch size that its bounds, and the loop, are computed from.

    `problem` says why it is not known to be a batch.
    """

    node: ast.Subscript
    scope: Scope
    sizes: tuple[Place, ...] = ()
    problem: str = ""


def bounds_of(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the first and the last bound of a slice along the first dimension, where both are given."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if not isinstance(first, ast.Slice) or first.lower is None or first.upper is None or first.step is not None:
        return None
    return first.lower, first.upper


def cut_into_parts(call: ast.Call, names: set[str]) -> tuple[ast.expr, ast.expr | None]:
    """Return what is cut and into parts of which size: order.split(size), torch.split(order, size)."""
    is_function = any(name.startswith("torch.") for name in names) and len(call.args) > 1
    given = call.args[0] if is_function else call.func.value  # type: ignore[attr-defined]
    sizes = call.args[is_function : is_function + 1]
    is_number = bool(sizes) and not isinstance(sizes[0], (ast.List, ast.Tuple))
    return given, sizes[0] if is_number else None


def slice_of(analysis: Analysis, node: ast.AST, scope: Scope, loop_nodes: frozenset[ast.AST]) -> Slice | None:
    """Return a slice whose bounds move with a loop over batches; None for any other expression."""
    bounds = bounds_of(node)
    if bounds is None or not moves(analysis, bounds[0], scope, loop_nodes):
        return None
    assert isinstance(node, ast.Subscript)
    width = _width(analysis, *bounds, scope)
    if width is None:
        return Slice(node, scope, problem=f"how many samples {ast.unparse(node)} has is not written down")
    arithmetic = list(_arithmetic(analysis, [(bound, scope) for bound in bounds], width))
    sizes = [place for place in arithmetic if _is_read_of(analysis, place, width)]
    steps = [place for place in sizes if not _is_inside(place[0], bounds[1])]
    if not steps and not _is_counted(bounds[0], width[0]):
        return Slice(
            node, scope, problem=f"the loop does not advance by {ast.unparse(width[0])}, the length of a slice"
        )
    return Slice(node, scope, tuple(dict.fromkeys(sizes)))


def moves(analysis: Analysis, lower: ast.expr, scope: Scope, loop_nodes: frozenset[ast.AST]) -> bool:
    """Return whether a bound is computed from the number of a loop that is run for the batches, or is moved in one."""
    for node, where in _arithmetic(analysis, [(lower, scope)]):
        for binding, _ in bindings_of(analysis, node, where) if isinstance(node, (ast.Name, ast.Attribute)) else ():
            is_range = isinstance(binding.node, ast.For) and range_of(analysis, binding.node, where) is not None
            if binding.node not in loop_nodes:
                continue
            if is_range or isinstance(binding.node, ast.AugAssign) or _is_moved_on(analysis, node, binding, where):
                return True
    return False


def _is_moved_on(analysis: Analysis, node: ast.expr, binding: Binding, scope: Scope) -> bool:
    """Return whether a variable is set to what is computed from it: `start = end`, end = start + size."""
    value = _value(binding)
    if value is None:
        return False
    own, parts = ast.unparse(node), list(_arithmetic(analysis, [(value, scope)]))
    is_own = any(ast.unparse(part) == own for part, _ in parts)
    return is_own and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) for part, _ in parts)


def range_of(analysis: Analysis, loop: ast.For, scope: Scope) -> ast.Call | None:
    """Return the range that a loop goes through, also inside enumerate or a progress bar, and in a variable."""
    gone_through = loop.iter
    if isinstance(gone_through, ast.Name):
        held = bindings_of(analysis, gone_through, scope)
        if len(held) == 1 and isinstance(held[0][0].value, ast.Call) and not held[0][0].path:
            gone_through, scope = held[0][0].value, held[0][1]
    for part in walk(gone_through):
        if isinstance(part, ast.Call) and analysis.called(part, scope) & NUMBERS:
            return part
    return None


def _width(analysis: Analysis, lower: ast.expr, upper: ast.expr, scope: Scope) -> Place | None:
    """Return the length of a slice: `size` of [i : i + size], of [b * size : (b + 1) * size]."""
    for end, where in _single(analysis, upper, scope):
        if not isinstance(end, ast.BinOp):
            continue
        if isinstance(end.op, ast.Add):
            for one, other in ((end.left, end.right), (end.right, end.left)):
                if ast.dump(one) == ast.dump(lower):
                    return other, where
        if isinstance(end.op, ast.Mult):
            for counted, size in ((end.left, end.right), (end.right, end.left)):
                if _is_next(counted) and _is_product(analysis, lower, scope, counted.left, size):  # type: ignore[attr-defined]
                    return size, where
    return None


def _is_next(node: ast.expr) -> bool:
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return is_sum and isinstance(node.right, ast.Constant) and node.right.value == 1  # type: ignore[attr-defined]


def _is_product(analysis: Analysis, node: ast.expr, scope: Scope, number: ast.expr, size: ast.expr) -> bool:
    """Return whether a lower bound is `number * size`."""
    wanted = {ast.dump(number), ast.dump(size)}
    for start, _ in _single(analysis, node, scope):
        is_product = isinstance(start, ast.BinOp) and isinstance(start.op, ast.Mult)
        if is_product and {ast.dump(start.left), ast.dump(start.right)} == wanted:  # type: ignore[attr-defined]
            return True
    return False


def _single(analysis: Analysis, node: ast.expr, scope: Scope) -> Iterator[Place]:
    """Yield an expression, and those that it is by another name or cut off at the end: min(i + size, n)."""

    def step(place: Place) -> Iterator[Place]:
        inner, where = place
        if isinstance(inner, ast.Name):
            found = bindings_of(analysis, inner, where)
            uncut = [place for place in found if not _is_cut_off(inner, *place)]
            value = _value(uncut[0][0]) if len(uncut) == 1 else None
            if value is not None:
                yield value, uncut[0][1]
        elif isinstance(inner, ast.Call) and analysis.called(inner, where) & ROUNDING:
            yield from ((part, where) for part in inner.args)

    return closure([(node, scope)], step)


def _value(binding: Binding) -> ast.expr | None:
    """Return what a number is set to, also as one of several: `start, end = i, i + size`."""
    return part_of(binding) if binding.kind == "value" else None


def _is_cut_off(name: ast.Name, binding: Binding, scope: Scope) -> bool:
    """Return whether a number is set to what a test says that it is larger than: `if end > n: end = n`."""
    outer = scope.source.parents.get(binding.node)
    test = outer.test if isinstance(outer, ast.If) and not outer.orelse else None
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
        return False
    compared, value = {ast.unparse(part) for part in (test.left, *test.comparators)}, binding.value
    return value is not None and compared == {name.id, ast.unparse(value)}


def _arithmetic(analysis: Analysis, starts: list[Place], width: Place | None = None) -> Iterator[Place]:
    """Yield what bounds are computed from: numbers, names, what these are set to, and the ranges of loops.

    A read of `width` is not followed further.
    """

    def is_width(place: Place) -> bool:
        return width is not None and _is_read_of(analysis, place, width)

    def step(place: Place) -> Iterator[Place]:
        node, scope = place
        if is_width(place):
            return
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield from _values_of(analysis, node, scope)
        elif isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp)):
            yield from ((part, scope) for part in children(node) if isinstance(part, ast.expr))
        elif isinstance(node, ast.IfExp):
            yield from ((part, scope) for part in (node.body, node.orelse))
        elif isinstance(node, ast.Call):
            arguments = [(part, scope) for part in (*node.args, *(given.value for given in node.keywords))]
            functions = _functions(analysis, node, scope)
            if functions and not any(is_width(argument) for argument in arguments):
                for function in functions:
                    yield from ((value, function.scope) for value in returns_of(function.node))
            elif "len" not in analysis.called(node, scope):
                yield from arguments

    return closure(starts, step)


def _values_of(analysis: Analysis, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[Place]:
    """Yield what a number is set to: in a loop, what the loop goes through, or what it is compared with."""
    for binding, where in bindings_of(analysis, node, scope):
        if isinstance(binding.node, ast.AugAssign):
            yield binding.node.value, where
            yield from _compared(node, binding.node, where)
        elif isinstance(binding.node, ast.For):
            drawn = range_of(analysis, binding.node, where)
            yield from ((part, where) for part in (drawn.args if drawn is not None else []))
        elif binding.kind == "parameter":
            found = given_for(analysis, binding.name, where, ())
            yield from ((given, site) for given, site, keys in found if not keys)
        elif binding.kind == "value" and binding.value is not None:
            is_quotient = isinstance(binding.value, ast.Call) and "divmod" in analysis.called(binding.value, where)
            value = binding.value if is_quotient else part_of(binding)
            yield from [(value, where)] if value is not None else []


def _compared(node: ast.expr, moved: ast.AugAssign, scope: Scope) -> Iterator[Place]:
    """Yield the sides of the comparisons by which the `while` around `i += size` ends."""
    outer = next((part for part in scope.source.ancestors(moved) if isinstance(part, (*FUNCTIONS, ast.While))), None)
    tests = walk(outer.test) if isinstance(outer, ast.While) else ()
    for test in (test for test in tests if isinstance(test, ast.Compare)):
        if any(ast.dump(part) == ast.dump(node) for part in walk(test)):
            yield from ((side, scope) for side in (test.left, *test.comparators))


def _functions(analysis: Analysis, call: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the project's functions whose result a call is: that of `__len__` for len(batches)."""
    if call.args and "len" in analysis.called(call, scope):
        objects = [value for value in analysis.evaluate(call.args[0], scope) if isinstance(value, Instance)]
        methods = [analysis.classes.method(value.scope, "__len__") for value in objects]
        return [method for method in methods if method]
    return functions_run(analysis, call, scope)


def _is_read_of(analysis: Analysis, place: Place, width: Place) -> bool:
    """Return whether an expression reads the setting that the length of a slice is."""
    node, scope = place
    if isinstance(node, ast.Constant):
        outer = scope.source.parents.get(node)
        counts = isinstance(outer, (ast.BinOp, ast.AugAssign)) or (
            isinstance(outer, ast.Call) and node in outer.args[2:]
        )
        return counts and is_same(analysis, place, width)
    if ast.dump(node) == ast.dump(width[0]) and scope is width[1]:
        return True
    return isinstance(node, (ast.Name, ast.Attribute)) and is_same(analysis, place, width)


def _is_counted(lower: ast.expr, width: ast.expr) -> bool:
    """Return whether a lower bound itself counts slices: number * size."""
    return any(ast.dump(part) == ast.dump(width) for part in walk(lower))


def _is_inside(node: ast.expr, outer: ast.expr) -> bool:
    return any(part is node for part in walk(outer))
