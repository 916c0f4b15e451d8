"""Calls on the way to a loss that compares samples: functions of rows, sizes of them, models, own functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.calls.graph import calls_in, functions_reached
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import IN_ORDER, IN_OTHER_ORDER
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.analysis.values.kinds import LocalFunction, Result
from retrofit.training.torch_api.modules import SEQUENCE_FIRST
from retrofit.training.torch_api.tensors import (
    BEFORE_AXIS,
    CLAMPS,
    COMPARISONS,
    CONVERTS,
    COPIED_ALONG,
    DETACHES,
    DRAWN,
    DRAWN_LIKE,
    EINSUMS,
    ENTRYWISE,
    INTEGER_CASTS,
    JOINS,
    MASK_CASTS,
    NEW,
    NONLINEAR,
    PRODUCT_METHODS,
    PRODUCTS,
    READS,
    REDUCTIONS,
    REPEATS,
    SAME_ARRAY,
    SHAPE_METHODS,
    SORTS,
    SPLITS,
    TENSOR_CLASSES,
    TRANSPOSES,
    not_in_place,
)
from retrofit.training.torch_api.tensors import (
    VIEWS as RESHAPING,
)

from ...data.draws.sized_draws import size_of
from ..reductions.lists import SAMPLES
from ..wrapped import functions_inside
from .one_axis import may_have_one_axis
from .values import (
    FIXED,
    OTHER,
    OTHER_ORDER,
    PARTS,
    PLAIN,
    RESHAPED,
    ROWS,
    SIZE,
    TAKEN_APART,
    VIEWS,
    WHOLE,
    Path,
    Value,
    join,
    other,
    size_along,
    unpacked_shape,
)

if TYPE_CHECKING:
    from .values import ValueReader

SAME = SAME_ARRAY | DETACHES | INTEGER_CASTS | MASK_CASTS | {"requires_grad_", "squeeze", "dropout"}
SAME |= TENSOR_CLASSES | CONVERTS  # also Variable(x) of old scripts
OF_ENTRIES = (ENTRYWISE | COMPARISONS | NONLINEAR | CLAMPS | REPEATS | SAME) - JOINS - SPLITS
REORDERING = JOINS | COPIED_ALONG
# Functions along an axis, with the axis where none is given; the rest is along all of them.
ALONG = REDUCTIONS | SORTS | {"softmax", "log_softmax", "normalize", "cumsum", "argmax", "argmin", "amax", "amin"}
DEFAULT_AXES = {"normalize": 1, "sort": -1, "argsort": -1, "topk": -1, "softmax": 1, "log_softmax": 1}
RANDOM = DRAWN | {"multinomial", "bernoulli", "sample", "choice", "shuffle", "permutation"}
NOISE = frozenset({"rand", "randn", "normal", "uniform"})  # numbers, and no indices of samples
ON_LISTS = IN_ORDER | {"enumerate", "zip", "dict", "reversed", "range", "int", "float", "abs"}
ON_LISTS |= {"items", "values", "get", "pop"}


class CallValues:
    """Answers what calls have of a batch."""

    def __init__(self, reader: ValueReader) -> None:
        self.reader, self.analysis, self.project = reader, reader.analysis, reader.project

    def value(self, node: ast.Call, scope: Scope, path: Path) -> Value:
        name = not_in_place(last_name(node))
        receiver = self._receiver(node, scope)
        given = [*([receiver] if receiver is not None else []), *node.args]
        everything = [*given, *(keyword.value for keyword in node.keywords)]
        if node in self.project.batch_values.calls:
            return self._of_model(node, everything, scope, path)
        functions = functions_inside(self.analysis, node, scope)
        if functions:
            return self._of_project(functions, everything, scope, path)
        if name in RANDOM:
            return self._of_draw(node, name, scope)
        if not given:
            return self.reader.all_of(everything, scope)
        first = self.reader.value(given[0], scope, path if name in ON_LISTS or name in SAME else ())
        if first.kind in ROWS and (name in SHAPE_METHODS or name == "len"):
            return self._of_shape(node, name, given[1:], scope, path)
        if name in SHAPE_METHODS or name == "len":
            return first if name in ("size", "len", "numel", "nelement", "stride") else Value(FIXED)
        if name in PRODUCT_METHODS and (receiver is not None or self.analysis.called(node, scope) & set(PRODUCTS)):
            return self.reader.product(given[-2], given[-1], scope) if len(given) > 1 else other(name)
        if name in JOINS:
            return self._joined(node, name, given, scope)
        if first.kind in ROWS:
            return self._of_rows(node, name, first, given, everything, scope)
        return self._of_others(name, node, everything, scope)

    def _of_draw(self, node: ast.Call, name: str, scope: Scope) -> Value:
        """Return what a draw has of a batch: a row of noise per sample belongs to the rank's samples, as an image."""
        if node not in self.reader.in_loops and node not in self.reader.in_batches:
            return Value(FIXED)  # before the training all ranks draw the same
        size = size_of(self.analysis, node, scope) if name in NOISE else None
        if size is not None and self.reader.value(size, scope, ()).kind == SIZE:
            return Value(PLAIN)
        return other("random numbers are drawn, by each rank its own")

    def _of_others(self, name: str, node: ast.Call, everything: list[ast.expr], scope: Scope) -> Value:
        found = self.reader.all_of(everything, scope)
        if name in DRAWN_LIKE and found.kind in ROWS:
            return found
        if name in DRAWN_LIKE and found.kind == WHOLE:
            return other("random numbers are drawn, by each rank its own")
        if found.kind == SIZE and name[:1].isupper() and name not in TENSOR_CLASSES:
            return Value(FIXED)  # an object that is made for a batch size: a loader
        is_known = name in OF_ENTRIES | NEW | TENSOR_CLASSES or self._is_layer(node, scope)
        if found.kind in ROWS and not is_known and not self.analysis.called(node, scope) & EINSUMS:
            return other(f"it is not known what {ast.unparse(node.func)} makes of rows")
        return found

    def _receiver(self, node: ast.Call, scope: Scope) -> ast.expr | None:
        """Return the object whose method is called: not a module, and not an object of which the function is a part."""
        is_method = isinstance(node.func, ast.Attribute) and not is_imported(node.func, scope)
        return node.func.value if is_method else None  # type: ignore[attr-defined]

    # Functions of the project, models.

    def _of_model(self, node: ast.Call, given: list[ast.expr], scope: Scope, path: Path) -> Value:
        """Return what a model makes of a batch: rows in the order of those that it is given, where it joins none."""
        values = [self.reader.value(part, scope) for part in [*node.args, *(k.value for k in node.keywords)]]
        kinds = {value.kind for value in values}
        functions = functions_inside(self.analysis, node, scope)
        if functions:
            found = join(self.reader.value(part, f.scope, path) for f in functions for part in returns_of(f.node))
            is_weight = found.kind == FIXED and path and self._is_of_no_sample(functions, path)
            if found.kind in (WHOLE, *ROWS) or is_weight:
                return found
        rows = [value for value in values if value.kind in ROWS]
        if WHOLE in kinds or not rows:
            return join(values)
        is_reordered = any(self._reorders(function) for function in functions)
        return other("the model puts rows together in an order that is not known") if is_reordered else join(rows)

    def _is_of_no_sample(self, functions: list[LocalFunction], path: Path) -> bool:
        """Return whether an entry of what a model returns is computed from its weights alone: a learnt temperature."""
        returned = [(part, f.scope) for f in functions for part in returns_of(f.node)]
        parts = (part for place in returned for part in computed_from(self.analysis, *place, keys=path))  # type: ignore[arg-type]
        names = ((part.node, part.scope) for part in parts if isinstance(part.node, ast.Name))
        bindings = (binding for name, scope in names if name.id != "self" for binding in live_bindings(name, scope)[1])
        return not any(binding.kind in ("parameter", "item") for binding in bindings)

    def _reorders(self, function: LocalFunction) -> bool:
        """Return whether a function, or one that it runs, may put rows after one another."""
        for inner in [function, *functions_reached(self.analysis, calls_in(function))]:
            for node, _ in calls_in(inner):
                if last_name(node) in REORDERING and axis_number(axis_of(node, node.args[1:]), default=0) in (0, None):
                    return True
        return False

    def _of_project(self, functions: list[LocalFunction], given: list[ast.expr], scope: Scope, path: Path) -> Value:
        value = self.reader.all_of(given, scope)
        if value.kind == WHOLE:
            return value
        return join(self.reader.value(part, f.scope, path) for f in functions for part in returns_of(f.node))

    def _is_layer(self, node: ast.Call, scope: Scope) -> bool:
        """Return whether a layer of torch.nn, or a model of a library, is called."""
        made = [value for value in self.analysis.evaluate(node.func, scope) if isinstance(value, Result)]
        return bool(made) and not any(value.builder in SEQUENCE_FIRST or "Loss" in value.builder for value in made)

    # Functions of rows.

    def _axis(
        self, node: ast.Call, rest: list[ast.expr], scope: Scope, names: tuple[str, ...] = ("dim", "axis")
    ) -> ast.expr | None:
        """Return the axis that a call is given; of a variable a number that it holds, if any does."""
        given = axis_of(node, rest, names)
        if not isinstance(given, (ast.Name, ast.Attribute)):
            return given
        held = [getattr(value, "node", None) for value in self.analysis.evaluate(given, scope)]
        numbers = {axis_number(each) if isinstance(each, ast.expr) else None for each in held}
        is_inner = bool(held) and all(number is not None and (number > 0 or number == -1) for number in numbers)
        return held[0] if is_inner or (len(numbers) == 1 and None not in numbers) else given

    def _of_shape(self, node: ast.Call, name: str, rest: list[ast.expr], scope: Scope, path: Path) -> Value:
        if name == "len":
            return size_along(node, scope, 0)
        if name == "size":
            return size_along(node, scope, axis_number(rest[0])) if rest else unpacked_shape(path)
        return other("the number of entries is used") if name in ("numel", "nelement") else Value(FIXED)

    def _joined(self, node: ast.Call, name: str, given: list[ast.expr], scope: Scope) -> Value:
        """Return what torch.cat and torch.stack make: views, where they are put one after the other."""
        found = self.reader.value(given[0], scope)
        axis = axis_number(self._axis(node, given[1:], scope), default=0)
        if found.kind not in ROWS or (axis is not None and axis > 0):
            return found
        if name in ("cat", "concat", "concatenate", "vstack") and axis == 0 and found.kind in (PLAIN, VIEWS):
            return Value(VIEWS)
        is_last = axis == -1 and name != "stack"
        return found if is_last else other("rows are put together in an order that is not known")

    def _of_rows(
        self, node: ast.Call, name: str, rows: Value, given: list[ast.expr], everything: list[ast.expr], scope: Scope
    ) -> Value:
        rest = given[1:]
        if name in RESHAPING:
            return self._reshaped(rows, rest, scope)
        if name in SPLITS:
            axis = axis_number(self._axis(node, rest[1:] if name != "unbind" else rest, scope), default=0)
            return rows if axis != 0 or (rows.kind == VIEWS and name != "unbind") else other(TAKEN_APART)
        if name in TRANSPOSES:
            return self._transposed(name, rows, rest)
        if name == "flatten":
            start = axis_number(self._axis(node, rest, scope, ("start_dim",)), default=0)
            return rows if start else Value(PARTS) if rows.kind != VIEWS else other("views are flattened")
        if name == "unsqueeze":
            return (
                rows
                if axis_number(self._axis(node, rest, scope), default=0) != 0
                else other("rows get another first axis")
            )
        if name in ("repeat", "tile"):
            return self._repeated(rows, rest)
        if name == "repeat_interleave":
            return (
                Value(PARTS)
                if axis_number(self._axis(node, rest[1:], scope)) == 0 and rows.kind != VIEWS
                else other(name)
            )
        if name in ALONG:
            own = self._axis(node, rest[BEFORE_AXIS.get(name, 0) :], scope)
            axis = axis_number(own, default=DEFAULT_AXES.get(name, 0))
            is_last = axis == -1 and not may_have_one_axis(self.project, given[0], scope)
            return rows if axis is not None and (axis > 0 or is_last) else other("rows of samples become one")
        if name in READS:
            return other("numbers for Python are made of single rows")
        if name in OF_ENTRIES or self._is_layer(node, scope):
            return self.reader.all_of(everything, scope)
        if name in IN_OTHER_ORDER and self.reader.lists.entries(given[0], scope) == {SAMPLES}:
            return other(OTHER_ORDER)
        return rows if name in ON_LISTS else other(f"it is not known what {ast.unparse(node.func)} makes of rows")

    def _reshaped(self, rows: Value, rest: list[ast.expr], scope: Scope) -> Value:
        shape = list(rest[0].elts) if rest and isinstance(rest[0], (ast.Tuple, ast.List)) else rest
        first = self.reader.value(shape[0], scope) if shape else Value(OTHER)
        if (first.kind == SIZE and any(shape[0] is leaf for leaf, _ in first.sizes)) or self._is_size_name(
            shape, scope
        ):
            return rows
        is_merged = first.kind == SIZE or (shape and axis_number(shape[0]) == -1)
        if is_merged and rows.kind != VIEWS:
            return Value(PARTS)
        return other(RESHAPED)

    def _is_size_name(self, shape: list[ast.expr], scope: Scope) -> bool:
        """Return whether the first size is a variable that holds the number of samples, or of rows."""
        if not shape or not isinstance(shape[0], ast.Name):
            return False
        sizes = self.reader.value(shape[0], scope).sizes
        bound = {binding.value for binding in (scope.find(shape[0].id) or (scope, []))[1]}
        return bool(sizes) and all(leaf in bound for leaf, _ in sizes)

    def _transposed(self, name: str, rows: Value, rest: list[ast.expr]) -> Value:
        axes = [axis_number(part) for part in rest]
        is_first_kept = axes[:1] == [0] if name == "permute" else len(axes) == 2 and not {0, None} & set(axes)
        is_first_kept &= name == "permute" or all(axis is not None and (axis > 0 or axis >= -2) for axis in axes)
        return rows if is_first_kept else other("rows of samples are not in the first axis")

    def _repeated(self, rows: Value, rest: list[ast.expr]) -> Value:
        times = [axis_number(part) for part in (rest[0].elts if rest and isinstance(rest[0], ast.Tuple) else rest)]
        if times[:1] == [1]:
            return rows
        is_counted = bool(times) and times[0] is not None and rows.kind in (PLAIN, VIEWS)
        return Value(VIEWS) if is_counted else other("rows are repeated by a number that is not known")


def axis_of(node: ast.Call, rest: list[ast.expr], names: tuple[str, ...] = ("dim", "axis")) -> ast.expr | None:
    """Return the axis that a call is given, the first one of several."""
    found = next((keyword.value for keyword in node.keywords if keyword.arg in names), rest[0] if rest else None)
    is_tuple = isinstance(found, (ast.Tuple, ast.List)) and found.elts
    return found.elts[0] if is_tuple else found  # type: ignore[union-attr]


def axis_number(node: ast.expr | None, default: int | None = None) -> int | None:
    """Return the number that an axis is, None where it is not written as one."""
    if node is None:
        return default
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = axis_number(node.operand)
        return None if inner is None else -inner
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if is_number else None  # type: ignore[attr-defined]
