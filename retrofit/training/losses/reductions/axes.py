"""The axis of the samples in a tensor, through changes of its shape and sums over some of its axes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import ALONG_AXIS, CHOOSES, FLATTENS, VIEWS

from ..comparisons.patterns import axes_in_pattern, equation_of, reduction_of
from . import kinds
from .kinds import FLAT, Kind

FLATTENING = FLATTENS | CHOOSES


@dataclass(frozen=True)
class Sizes:
    """Answers whether a number comes from a batch, and along which axis a tensor has its samples."""

    is_of_batch: Callable[[ast.expr], bool]
    axis_of: Callable[[ast.expr, Scope], int]


def axes_of(node: ast.Call, rest: list[ast.expr], scope: Scope) -> tuple[tuple[int, ...] | None, bool]:
    """Return the axes that a sum goes over, None for all, and whether it keeps them as axes of size 1.

    `rest`: the positional arguments after the tensor. Axes that cannot be read include that of the batch, if a 0
    is in them.
    """
    given = next((k.value for k in node.keywords if k.arg in ("dim", "axis", "dims")), rest[0] if rest else None)
    keeps = any(k.arg in ("keepdim", "keepdims") and getattr(k.value, "value", True) for k in node.keywords)
    keeps = keeps or (len(rest) > 1 and getattr(rest[1], "value", None) is True)
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return None, keeps
    if len(rest) > 1 and all(number_in(part) is not None for part in rest):
        return tuple(n for part in rest if (n := number_in(part)) is not None), keeps  # x.sum(1, 2)
    return _numbers(given, scope), keeps


def axis_along(node: ast.Call, name: str, rest: list[ast.expr], scope: Scope) -> int | None:
    """Return the axis that a function of ALONG_AXIS is computed along, None where it cannot be read."""
    place, default = ALONG_AXIS[name]
    axes, _ = axes_of(node, rest[place:], scope)
    return default if axes is None else axes[0] if axes else None


def _numbers(node: ast.expr, scope: Scope, depth: int = 4) -> tuple[int, ...]:
    """Return the numbers in an expression for axes; those that only follow from a shape are left out."""
    number = number_in(node)
    if number is not None:
        return (number,)
    if isinstance(node, ast.Starred):
        return _numbers(node.value, scope, depth)
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(n for part in node.elts for n in _numbers(part, scope, depth))
    if isinstance(node, ast.BinOp):
        return _numbers(node.left, scope, depth) + _numbers(node.right, scope, depth)
    if isinstance(node, ast.Call) and node.args:
        name = last_name(node)
        if name == "range":
            first = number_in(node.args[0]) if len(node.args) > 1 else 0
            return (first,) if first is not None else ()
        return _numbers(node.args[0], scope, depth) if name in ("tuple", "list") else ()
    if isinstance(node, ast.IfExp):
        return _numbers(node.body, scope, depth) + _numbers(node.orelse, scope, depth)
    if isinstance(node, (ast.Name, ast.Attribute)) and depth:
        return tuple(n for value, where in _values(node, scope) for n in _numbers(value, where, depth - 1))
    return ()


def _values(node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    if isinstance(node, ast.Name):
        owner, bindings = scope.find(node.id) or (scope, [])
        return [(b.value, owner) for b in bindings if b.value is not None and b.kind == "value" and not b.path]
    return []


def number_in(node: ast.expr) -> int | None:
    """Return the number that an expression is, None where it is not written as one."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number_in(node.operand)
        return None if inner is None else -inner
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if is_number else None  # type: ignore[attr-defined]


def reshaped(node: ast.Call, name: str, kind: Kind, rest: list[ast.expr], scope: Scope, sizes: Sizes) -> Kind:
    """Return the kind of rows after a change of shape, or a function of each entry."""
    if name == "flatten" and kind.axis == 0 and _ends_early(node, rest):
        return kind  # flatten(0, 1): the first axis still has all samples
    if name in FLATTENING:
        is_whole = name != "flatten" or not _starts_after_batch(node, rest)
        return replace(kind, axis=FLAT) if is_whole else kind
    if name in VIEWS and rest:
        shape = list(rest[0].elts) if isinstance(rest[0], (ast.Tuple, ast.List)) else rest
        if len(shape) == 1 and number_in(shape[0]) == -1:
            return replace(kind, axis=FLAT)
        if [number_in(part) for part in shape] == [1, -1]:
            return replace(kind, axis=1)
        if kind.axis not in (0, FLAT) and number_in(shape[-1]) == -1:
            return replace(kind, axis=-1)  # classes first, the batch is merged into the rest
        first = 1 if number_in(shape[0]) == 1 and len(shape) > 2 else 0  # view(1, n, -1)
        return replace(kind, axis=_with_size_of_batch(shape, scope, sizes, FLAT if kind.axis == FLAT else first))
    if name == "permute":
        order = tuple(n for part in rest for n in _numbers(part, scope))  # of (1, 0, *rest) the beginning
        return replace(kind, axis=order.index(kind.axis)) if kind.axis in order else kind
    if name in ("movedim", "moveaxis") and len(rest) == 2:
        return replace(kind, axis=_moved(kind.axis, number_in(rest[0]), number_in(rest[1])))
    if name in ("transpose", "swapaxes", "swapdims") and len(rest) == 2:
        one, other = number_in(rest[0]), number_in(rest[1])
        moved = {one: other, other: one}.get(kind.axis, kind.axis)
        return replace(kind, axis=moved) if moved is not None else kind
    if name in ("t", "adjoint"):
        return replace(kind, axis=1 if kind.axis == 0 else 0)
    if name == "unflatten" and len(rest) == 2 and number_in(rest[0]) == kind.axis:
        parts = _numbers(rest[1], scope)[:1]  # (1, -1) has the samples second, (-1, n) n of them side by side
        apart = replace(kind, axis=kind.axis + 1)
        return kind if parts == (-1,) else apart if parts == (1,) else kinds.coupled_by(kind, (node, scope), kinds.ROWS)
    if name == "unbind" and (axes_of(node, rest, scope)[0] or (0,)) == (0,):
        return kinds.entry(kind)
    if name == "unsqueeze" and rest and number_in(rest[0]) == 0 and kind.axis != FLAT:
        return replace(kind, axis=kind.axis + 1)
    if name == "rearrange" and rest and isinstance(rest[0], ast.Constant):
        return replace(kind, axis=_after_rearranging(str(rest[0].value), kind.axis))
    return kinds.nonlinear(kind)


def _moved(axis: int, source: int | None, target: int | None) -> int:
    """Return the place of an axis after one axis is moved to another place."""
    if source is None or target is None or axis == FLAT:
        return axis
    if source == axis:
        return target
    if source < 0 or target < 0:
        return axis - (0 <= source < axis)
    return axis - (source < axis) + (target <= axis - (source < axis))


def _with_size_of_batch(shape: list[ast.expr], scope: Scope, sizes: Sizes, otherwise: int) -> int:
    """Return the axis of the samples in a new shape: the only one with the size of the batch."""
    found = [
        number for number, part in enumerate(shape) if sizes.is_of_batch(part) and _counts_samples(part, scope, sizes)
    ]
    return found[0] if len(found) == 1 else otherwise


def _counts_samples(node: ast.expr, scope: Scope, sizes: Sizes, depth: int = 4) -> bool:
    """Return whether a number is computed from how many samples a tensor has: x.shape[0], len(x)."""
    if isinstance(node, ast.BinOp):
        return any(_counts_samples(part, scope, sizes, depth) for part in (node.left, node.right))
    if isinstance(node, ast.Subscript):
        return _is_shape(node.value) and number_in(node.slice) == sizes.axis_of(_shaped(node.value), scope)
    if isinstance(node, ast.Call):
        if last_name(node) == "size" and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            return number_in(node.args[0]) == sizes.axis_of(node.func.value, scope)
        return last_name(node) == "len"
    if not isinstance(node, ast.Name) or not depth:
        return False
    owner, bindings = scope.find(node.id) or (scope, [])
    unpacked = [b for b in bindings if len(b.path) == 1 and b.value is not None and _is_shape(b.value)]
    if any(b.path[0] == sizes.axis_of(_shaped(b.value), owner) for b in unpacked if b.value is not None):
        return True  # n, c = x.shape
    return any(_counts_samples(value, where, sizes, depth - 1) for value, where in _values(node, scope))


def _shaped(shape: ast.expr) -> ast.expr:
    """Return the tensor that x.shape, x.size() or x.shape[:2] is of."""
    while isinstance(shape, ast.Subscript):
        shape = shape.value
    shape = shape.func if isinstance(shape, ast.Call) else shape
    return shape.value if isinstance(shape, ast.Attribute) else shape


def _is_shape(node: ast.expr) -> bool:
    """Return whether this is x.shape, x.size() or the first of their numbers: x.shape[:2]."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return node.slice.lower is None and _is_shape(node.value)
    return last_name(node) in ("shape", "size") and not (isinstance(node, ast.Call) and node.args)


def _starts_after_batch(node: ast.Call, rest: list[ast.expr]) -> bool:
    starts = [k.value for k in node.keywords if k.arg == "start_dim"] or rest[:1]
    number = number_in(starts[0]) if starts else 0
    return number is not None and number >= 1


def _ends_early(node: ast.Call, rest: list[ast.expr]) -> bool:
    ends = [k.value for k in node.keywords if k.arg == "end_dim"] or rest[1:2]
    return bool(ends) and number_in(ends[0]) != -1


def _after_rearranging(pattern: str, axis: int) -> int:
    """Return the axis of the samples after einops.rearrange(x, "b c h w -> c (b h w)")."""
    before, _, after = pattern.partition("->")
    given, axes = axes_in_pattern(before), axes_in_pattern(after)
    batch = given[axis][:1] if -len(given) <= axis < len(given) else []
    index = next((number for number, names in enumerate(axes) if batch and batch[0] in names), 0)
    return FLAT if len(axes) == 1 else index


def is_of_whole(index: ast.expr) -> bool:
    """Return whether an index is into a tensor or takes a part of a list: x[:, 0], x[0, 1], x[:n], x[None]."""
    if isinstance(index, ast.Tuple):
        return not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in index.elts)
    return isinstance(index, ast.Slice) or _is_new_axis(index)


def after_index(axis: int, index: ast.expr) -> int:
    """Return the axis of the samples after an index that puts in new axes, or takes one entry along others."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if not any(map(_is_new_axis, parts)) or not 0 <= axis < FLAT:
        return axis
    before, after = 0, 0
    for part in parts:
        if before > axis or getattr(part, "value", None) is Ellipsis:
            break
        if _is_new_axis(part):
            after += 1
            continue
        if before == axis:
            return after
        before, after = before + 1, after + (number_in(part) is None)
    return after + axis - before


def _is_new_axis(part: ast.expr) -> bool:
    is_none = isinstance(part, ast.Constant) and part.value is None
    return is_none or (isinstance(part, ast.Attribute) and part.attr == "newaxis")


def einsum_kind(node: ast.Call, operands: Kind, scope: Scope) -> Kind:
    """Return the kind of torch.einsum("bc,bc->b", x, y): a sum over the samples where their axis is gone."""
    equation = equation_of(node)
    if equation is None or not operands.has_rows:
        return operands if operands.parts else kinds.of(kinds.UNKNOWN)
    batch, after = equation[0][0][:1], equation[1]
    if batch in after:
        return replace(operands, axis=after.index(batch))
    return kinds.reduced(operands, kinds.SUM, (node, scope), None, False)


def kind_by_pattern(node: ast.Call, found: Kind, scope: Scope) -> Kind:
    """Return the kind of einops.reduce(x, "b c -> c", "mean"), by whether its pattern keeps the samples."""
    if not found.has_rows:
        return found
    read = reduction_of(node, 0 if found.axis == FLAT else found.axis)
    if read is None:
        return kinds.of(kinds.UNKNOWN)
    how, place = read
    if place is not None:
        return replace(found, axis=place)
    if how in (kinds.SUM, kinds.MEAN):
        return kinds.reduced(found, how, (node, scope), None, False)
    return kinds.coupled_by(found, (node, scope))


def maps_other_axis(made: ast.Call) -> bool:
    """Return whether torch.vmap is told to go along another axis than the first of what it is given."""
    axes = argument_for(made, ["func", "in_dims"], "in_dims")
    parts = axes.elts if isinstance(axes, (ast.Tuple, ast.List)) else [axes] if axes is not None else []
    return not all(isinstance(part, ast.Constant) and part.value in (0, None) for part in parts)
