"""Functions of the rows of a batch: of each entry, of each row, or of several samples together."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Display, Instance
from retrofit.training.data.batch_values import BATCH
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.tensors import (
    ALONG_AXIS,
    BEFORE_AXIS,
    COUNTS,
    EXTREMES,
    FROM_AXIS,
    KNOWN_MODULES,
    NORMALIZED_FROM,
    OF_ALL_ENTRIES,
    OF_EACH_ENTRY,
    OF_EACH_ROW,
    OF_MATRICES,
    OF_SQUARES,
    SHAPED_LIKE,
    SHAPED_MATRICES,
    SORTS,
    SORTS_ALL,
    SPREADS,
)

from ..gathering.dimensions import number_of_axes
from ..gathering.one_axis import is_left_one_axis, may_have_one_axis
from . import kinds
from .axes import Sizes, axes_of, axis_along, number_in, reshaped
from .kinds import Kind
from .library import library_reduction, raised_norm

if TYPE_CHECKING:
    from .reader import Frame, LossReader


TAKES = {"index_select"}  # rows, by an index of the batch


@dataclass(frozen=True)
class Applied:
    """A call of a function, or of a method, of the tensor `of`; `rest`: the positional arguments after it."""

    node: ast.Call
    name: str
    of: ast.expr
    rest: list[ast.expr]
    scope: Scope
    frame: Frame | None


class RowFunctions:
    """Answers what functions and methods make of rows of a batch."""

    def __init__(self, reader: LossReader) -> None:
        self.reader, self.analysis = reader, reader.analysis

    def kind(self, call: Applied, found: Kind) -> Kind:
        name = call.name
        if name in COUNTS:
            return self._counted(call, found)
        if name in SORTS or name in SPREADS or (name in EXTREMES and not _is_with_another(name, call.rest)):
            return self._of_all_entries(call, found)
        if self._is_over_samples(call, found):
            return kinds.coupled_by(found, (call.node, call.scope), kinds.ROWS, found.axis)
        changed = reshaped(call.node, name, found, call.rest, call.scope, self._sizes(call))
        return changed if name in SHAPED_LIKE else self._with_others(changed, call)

    def _is_over_samples(self, call: Applied, found: Kind) -> bool:
        """Return whether an entry of the result is computed from several samples."""
        name, node, scope = call.name.removesuffix("_"), call.node, call.scope  # torch.clamp_ changes x in place
        call = replace(call, name=name)
        if name == "batch_norm":
            return _is_training(node)
        if name in ALONG_AXIS:
            return self._is_along(call, found)
        if name in NORMALIZED_FROM:
            return self._is_normalized(call, found)
        axes = number_of_axes(self.analysis, call.of, scope)
        is_function = call.of in node.args
        if name == "unfold" and not is_function:
            return found.axis in (axes_of(node, call.rest[:1], scope)[0] or ())
        if name in FROM_AXIS or name == "unfold":
            return kinds.FLAT > found.axis >= FROM_AXIS.get(name, 1)
        if name in OF_SQUARES:
            return found.axis > 0 and axes is not None and kinds.FLAT > found.axis >= axes - 2
        if name in OF_MATRICES:
            return not _is_told_other_axes(node) and self._is_in_matrix(call, found, axes)
        if name in OF_ALL_ENTRIES:
            return not _is_told_other_axes(node)
        return name not in OF_EACH_ENTRY | OF_EACH_ROW | EXTREMES and self._is_unknown(call)

    def _is_along(self, call: Applied, found: Kind) -> bool:
        if call.name in TAKES and any(self._has_rows(part, call) for part in call.rest[1:]):
            return False  # what is taken of a sample, or which samples, follows from the samples
        axis = axis_along(call.node, call.name, call.rest, call.scope)
        if found.axis in (kinds.FLAT, axis):
            return True
        if found.axis == 0 and axis is not None and self.may_be_first(call.of, (axis,), call.scope):
            return True
        place, default = ALONG_AXIS[call.name]
        is_default = axes_of(call.node, call.rest[place:], call.scope)[0] is None
        if is_default and default == -1 and found.axis == 0:
            return may_have_one_axis(self.reader.project, call.of, call.scope)
        axes = number_of_axes(self.analysis, call.of, call.scope)
        return axes is not None and axis is not None and axis < 0 and found.axis == axes + axis

    def _has_rows(self, node: ast.expr, call: Applied) -> bool:
        return self.reader.kind(node, call.scope, call.frame).has_rows

    def _is_normalized(self, call: Applied, found: Kind) -> bool:
        """Return whether a normalisation runs over samples; F.layer_norm does over as many last axes as it is told."""
        shape = next(iter([*call.rest[:1], *(k.value for k in call.node.keywords)]), None)
        if call.name != "layer_norm" or shape is None:
            return found.axis >= NORMALIZED_FROM[call.name]
        if _is_shape(shape):
            return True
        number = number_of_axes(self.analysis, call.of, call.scope)
        if isinstance(shape, (ast.Tuple, ast.List)) and number is not None:
            return found.axis >= number - len(shape.elts)
        is_last = isinstance(shape, (ast.Tuple, ast.List)) and len(shape.elts) == 1
        return found.axis == kinds.FLAT if is_last else found.axis >= 1

    def may_be_first(self, node: ast.expr, axes: tuple[int, ...] | None, scope: Scope) -> bool:
        """Return whether axes from the end may be that of the samples: -2 of a matrix, with a row for each of them.

        Inside a module it is taken for one of the axes after that, as layers have more of them.
        """
        if axes is None or -2 not in axes or 0 in axes:
            return False
        number = number_of_axes(self.analysis, node, scope)
        if number is not None:
            return number == 2
        owner = scope.parent
        return owner is None or not is_module(self.analysis, Instance(owner))

    def _is_in_matrix(self, call: Applied, found: Kind, axes: int | None) -> bool:
        """Return whether rows of samples may be those of a matrix, the last two axes."""
        if axes is not None:
            return found.axis == kinds.FLAT or found.axis < 0 or found.axis >= axes - 2
        return found.axis == 0 and call.name not in SHAPED_MATRICES

    def _is_unknown(self, call: Applied) -> bool:
        """Return whether a function of torch, and not a loss, is in none of the tables."""
        if library_reduction(self.analysis, call.node, call.scope) is not None:
            return False
        called = self.analysis.called(call.node, call.scope)
        return any(full.rpartition(".")[0] in KNOWN_MODULES for full in called) and call.of in call.node.args

    def _sizes(self, call: Applied) -> Sizes:
        def axis_of(tensor: ast.expr, where: Scope) -> int:
            kind = self.reader.kind(tensor, where, call.frame)
            return kind.axis if kind.has_rows and kind.axis != kinds.FLAT else 0

        sources_of = self.reader.project.batch_values.sources_of
        return Sizes(lambda size: BATCH in sources_of(size, call.scope), axis_of)

    def _with_others(self, found: Kind, call: Applied) -> Kind:
        """Return the kind of rows that meet sums and means over the batch: torch.max(x, x.mean(0))."""
        given = [*call.rest, *(keyword.value for keyword in call.node.keywords)]
        others = self.reader.calls.joined(given, call.scope, call.frame)
        return replace(found, coupled=found.coupled | others.coupled | others.leaves)

    def _of_all_entries(self, call: Applied, found: Kind) -> Kind:
        """Return the kind of what is made of many entries together: the order of all, their norm."""
        name, node, scope = call.name, call.node, call.scope
        axes = self._axes(call, call.rest[BEFORE_AXIS.get(name, 0) :])
        number = number_of_axes(self.analysis, call.of, scope)
        is_of_all = name == "topk" and any(self.reader.size_factors.of(size, scope) for size in call.rest[:1])
        is_of_all |= name in SORTS and axes is None and may_have_one_axis(self.reader.project, call.of, scope)
        is_of_all |= axes == (-1,) and is_left_one_axis(self.reader.project, call.of, scope)
        is_of_all |= number == 1
        if axes is None and name in SORTS - SORTS_ALL and found.axis != kinds.FLAT and not is_of_all:
            axes = (-1,)
        axes = (0,) if axes == (-1,) and is_of_all else axes
        if axes is not None and self.may_be_first(call.of, axes, scope):
            axes = (*axes, 0)
        if axes is not None and number is not None:
            axes = tuple(axis + number if axis < 0 else axis for axis in axes)
        if axes is not None and found.axis != kinds.FLAT and found.axis not in axes:
            return found
        if raised_norm(node, ast.Constant(1), scope) is not None:  # the sum of the absolute values
            reduced = kinds.reduced(kinds.nonlinear(found), kinds.SUM, (node, scope), None, False)
            return self.reader.calls.noted(reduced, node)
        part = kinds.ROWS if name in SORTS and (name not in SORTS_ALL or axes is not None) else kinds.COUPLED
        return kinds.coupled_by(found, (node, scope), part, found.axis)

    def _axes(self, call: Applied, rest: list[ast.expr]) -> tuple[int, ...] | None:
        """Return the axes that a function goes along, also by a parameter that has one number in all calls."""
        axes, _ = axes_of(call.node, rest, call.scope)
        given = next((k.value for k in call.node.keywords if k.arg in ("dim", "axis")), rest[0] if rest else None)
        values = self.analysis.evaluate(given, call.scope) if axes == () and isinstance(given, ast.Name) else ()
        numbers = {number_in(value.node) if isinstance(value, Display) else None for value in values}
        return (numbers.pop(),) if len(numbers) == 1 and None not in numbers else axes  # type: ignore[return-value]

    def _counted(self, call: Applied, found: Kind) -> Kind:
        """Return the kind of what counts values in the batch: a sum, where as many are counted in each process."""
        is_sum = call.name == "bincount" and any(keyword.arg == "minlength" for keyword in call.node.keywords)
        part = kinds.SUM if is_sum else kinds.COUPLED
        leaves = found.leaves | {(call.node, call.scope)}
        return self.reader.calls.noted(Kind(frozenset([part]), 0, leaves, found.coupled), call.node)


def _is_training(node: ast.Call) -> bool:
    """Return whether F.batch_norm computes its mean from the batch, as far as is known: it does not by default."""
    names = ["input", "running_mean", "running_var", "weight", "bias", "training"]
    given = argument_for(node, names, "training")
    return given is not None and getattr(given, "value", None) is not False


def _is_with_another(name: str, rest: list[ast.expr]) -> bool:
    """Return whether this is `x.max(y)`, entry by entry, and not along an axis."""
    return name in ("max", "min") and bool(rest) and not isinstance(rest[0], (ast.Constant, ast.UnaryOp))


def _is_shape(node: ast.expr) -> bool:
    """Return whether this is the shape of a tensor as a whole: x.shape, x.size()."""
    node = node.func if isinstance(node, ast.Call) and not node.args else node
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "size")


def _is_told_other_axes(node: ast.Call) -> bool:
    """Return whether a function is given its axes, and the first is not among them: dim=(-1, -2), dim1=1, dim2=2."""
    dims = [k.value for k in node.keywords if k.arg in ("dim", "dim1", "dim2", "dims")]
    return bool(dims) and not any(map(_has_zero, dims))


def _has_zero(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return any(isinstance(part, ast.Constant) and part.value == 0 for part in parts)
