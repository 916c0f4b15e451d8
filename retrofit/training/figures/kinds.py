"""Kinds of figures by how they depend on this rank's part of a batch, and what operations make of them.

A figure that is a mean or a sum over the samples of a batch can be brought together over the ranks; one that is a
list with an entry per sample as well.
"""

from __future__ import annotations

import ast

from retrofit.analysis.interpreter.state import OTHER, SAME
from retrofit.analysis.python_api import CONTAINER_NAMES
from retrofit.training.torch_api.randomness import DRAWS_IN_PLACE
from retrofit.training.torch_api.tensors import (
    CHOOSES,
    COUNT_METHODS,
    COUNTS,
    DRAWN,
    ENTRYWISE,
    FILLED,
    FLATTENS,
    GRAPH,
    INTEGER_CASTS,
    MASK_CASTS,
    NEW,
    READS,
    SAME_ENTRIES,
    SQUEEZES,
    TENSOR_CLASSES,
    TRANSPOSED,
    TRANSPOSES,
    TYPE_ATTRIBUTES,
    TYPE_METHODS,
    VIEWS,
)

BATCH = "batch"  # an entry per sample, along the first dimension
WHOLE = "whole"  # what a loader gives: its parts have an entry per sample
COLUMNS = "columns"  # an entry per sample, along the second dimension
HELD_ROWS = "held rows"  # a rank's part of all data, not of one batch
HELD_COLUMNS = "held columns"
LAYOUT = "layout"  # of all samples, in another order of dimensions
CHOSEN = "chosen"  # some of the samples' elements
SHAPE = "shape"  # of a batch
COLUMNS_SHAPE = "shape of columns"
SIZE = "size"  # the number of samples, or of their elements
BATCH_SIZE = "batch size"  # the option: with a batch for all ranks together, a rank has a part of it only
PER_SIZE = "per size"
MEAN = "mean"  # over the samples
SUM = "sum"  # over the samples
LIST = "list"  # with an entry per sample, kept when the batch is over
REDUCIBLE = {MEAN, SUM, SIZE, BATCH_SIZE}
TENSORS = {BATCH, COLUMNS, LAYOUT, CHOSEN}
HELD = {HELD_ROWS: BATCH, HELD_COLUMNS: COLUMNS}
STILL_HELD = {kind: held for held, kind in HELD.items()}
SHAPES = {BATCH: SHAPE, CHOSEN: SHAPE, COLUMNS: COLUMNS_SHAPE}  # of a layout it is not known

KEEPING = READS | SAME_ENTRIES | INTEGER_CASTS | MASK_CASTS | SQUEEZES
TURNING = TRANSPOSES | TRANSPOSED
MAKING = FILLED | DRAWN | NEW | TENSOR_CLASSES | {"fill", "random", "multinomial", "choice"}
FORMATTING = CONTAINER_NAMES | {"format", "join", "zip", "str", "repr", "print"}
FIXED = TYPE_ATTRIBUTES | TYPE_METHODS | GRAPH
SCALARS = {"abs"}
ALONG_DIMENSIONS = {"max", "min", "amax", "amin", "any", "all", "prod", "logsumexp"}


def of_operator(op: ast.operator, left: str, right: str) -> str:
    """Return the kind of `left op right`; OTHER where nothing is known."""
    left, right = HELD.get(left, left), HELD.get(right, right)
    if left in TENSORS | {SAME} and right in TENSORS | {SAME}:
        return _of_tensors(left, right)
    if isinstance(op, (ast.Add, ast.Sub)):
        if {left, right} <= {MEAN, SAME}:
            return MEAN
        return SUM if {left, right} <= {SUM, SIZE} else OTHER
    if isinstance(op, ast.Mult):
        for one, other in ((left, right), (right, left)):
            if other == SAME and one in (MEAN, SUM, SIZE, PER_SIZE):
                return one
            if (one, other) == (MEAN, SIZE):
                return SUM
            if (one, other) == (SUM, PER_SIZE):
                return MEAN
        return OTHER
    if isinstance(op, ast.Div):
        if right == SAME and left in (MEAN, SUM, SIZE):
            return left
        if right == SIZE:
            return {SUM: MEAN, SAME: PER_SIZE}.get(left, OTHER)
    return OTHER


def _of_tensors(left: str, right: str) -> str:
    kinds = {left, right} - {SAME}
    if len(kinds) == 1:
        return kinds.pop()
    return SAME if not kinds else LAYOUT if CHOSEN not in kinds else OTHER


def of_method(kind: str, name: str, call: ast.Call | None, first: int = 0) -> str:
    """Return the kind of `x.name(...)`; `first` is the number of arguments that are x itself: 1 in torch.name(x)."""
    if kind == SAME or name in FIXED:
        return SAME
    if kind in HELD:
        made = of_method(HELD[kind], name, call, first)
        return STILL_HELD.get(made, made) if name in KEEPING | TURNING else made
    if name == "shape":
        return SHAPES.get(kind, OTHER) if kind in TENSORS else SAME
    if name == "size":
        return _of_size(kind, call)
    if name in KEEPING or (name in DRAWS_IN_PLACE and kind in TENSORS):
        return kind
    if kind in (MEAN, SUM):
        return _of_scalar(kind, name, call, first)
    if kind == WHOLE:
        return WHOLE if name in ("items", "values", "copy") else SAME if name == "keys" else OTHER
    if kind not in TENSORS:
        return OTHER
    return _of_tensor(kind, name, call, first)


def _of_scalar(kind: str, name: str, call: ast.Call | None, first: int) -> str:
    """Return what a method makes of a mean or a sum: a vector of means can be added up, or averaged, further."""
    if name in ("sum", "mean") or name in VIEWS | FLATTENS or name in TURNING:
        return kind
    return OTHER


def _of_tensor(kind: str, name: str, call: ast.Call | None, first: int) -> str:
    if name in ("sum", "mean", "nansum"):
        return _of_reduction(kind, "mean" if name == "mean" else "sum", call, first)
    if name in COUNT_METHODS:
        return SUM if kind == CHOSEN else SIZE
    if name in COUNTS:
        return SUM
    if name in CHOOSES:
        return CHOSEN
    if name in TURNING:
        return _turned(kind, name, call, first)
    if name in FLATTENS:
        return BATCH if kind in (LAYOUT, COLUMNS) else kind
    if name in VIEWS:
        given = call.args[first:] if call is not None else []
        is_flat = len(given) == 1 and ast.unparse(given[0]) == "-1"
        return kind if kind not in (LAYOUT, COLUMNS) else BATCH if is_flat else LAYOUT
    if name in ALONG_DIMENSIONS:
        return _along(kind, _dims(call, first))
    return kind if name in ENTRYWISE else OTHER


def _turned(kind: str, name: str, call: ast.Call | None, first: int) -> str:
    """Return the kind of x.t(), x.T, x.transpose(1, 2), x.permute(1, 0, 2) by where the samples lie afterwards."""
    if kind not in (BATCH, COLUMNS):
        return kind
    written = [_number(part) for part in call.args[first:]] if call is not None else []
    given = [number for number in written if number is not None and number >= 0]
    of_samples = int(kind == COLUMNS)
    if name in ("t", "T"):
        to: int | None = 1 - of_samples
    elif len(given) < len(written):
        to = None
    elif name == "permute":
        to = given.index(of_samples) if of_samples in given else None
    else:
        is_moved = len(given) == 2 and of_samples in given
        to = given[1 - given.index(of_samples)] if is_moved else of_samples if len(given) == 2 else None
    return LAYOUT if to is None else {0: BATCH, 1: COLUMNS}.get(to, LAYOUT)


def _of_reduction(kind: str, name: str, call: ast.Call | None, first: int) -> str:
    dims = _dims(call, first)
    if dims is None:
        return SUM if name == "sum" else OTHER if kind == CHOSEN else MEAN
    if kind in (CHOSEN, LAYOUT) or (kind == COLUMNS and any(dim < 0 for dim in dims)):
        return OTHER
    if kind == COLUMNS and dims == {0}:
        return BATCH
    if int(kind == COLUMNS) in dims:
        return SUM if name == "sum" else MEAN
    return kind if dims else OTHER


def _along(kind: str, dims: set[int] | None) -> str:
    """Return the kind of a tensor without some dimensions of the samples' own; OTHER if they are not, or unknown."""
    if not dims or kind == LAYOUT or int(kind == COLUMNS) in dims or (kind == COLUMNS and min(dims) < 0):
        return OTHER
    return BATCH if kind == COLUMNS and 0 in dims else kind


def _dims(call: ast.Call | None, first: int) -> set[int] | None:
    """Return along which dimensions a reduction goes, None for all of them, nothing where that is not known."""
    if call is None:
        return set()
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis")]
    given = call.args[first:] or named
    if not given:
        return None
    try:
        value = ast.literal_eval(given[0])
    except ValueError:
        return set()
    dims = {value} if isinstance(value, int) else set(value) if isinstance(value, (tuple, list)) else set()
    return {dim for dim in dims if isinstance(dim, int)}


def _of_size(kind: str, call: ast.Call | None) -> str:
    if kind not in TENSORS:
        return SAME
    if call is None or not call.args:
        return SHAPES.get(kind, OTHER)
    return of_index(SHAPES[kind], call.args[0]) if kind in SHAPES else OTHER


def of_index(kind: str, index: ast.expr) -> str:
    """Return the kind of `x[index]` for an index that is the same on every rank."""
    kind = HELD.get(kind, kind)
    if kind in (SHAPE, COLUMNS_SHAPE):
        number = _number(index)
        is_unclear = number is None or (kind == COLUMNS_SHAPE and number < 0)
        return OTHER if is_unclear else SIZE if number == int(kind == COLUMNS_SHAPE) else SAME
    if kind in (MEAN, SUM):
        return kind
    if kind == WHOLE:
        return WHOLE if isinstance(index, ast.Slice) else BATCH
    if kind not in TENSORS:
        return OTHER
    if isinstance(index, ast.Constant) and isinstance(index.value, str):
        return kind
    if isinstance(index, ast.Tuple) and index.elts and isinstance(index.elts[0], ast.Slice):
        of_samples = index.elts[int(kind == COLUMNS)] if len(index.elts) > int(kind == COLUMNS) else ast.Slice()
        return kind if isinstance(of_samples, ast.Slice) and not (of_samples.lower or of_samples.upper) else OTHER
    if isinstance(index, ast.Slice) and kind in (LAYOUT, COLUMNS):
        return kind
    return BATCH if kind == COLUMNS and not isinstance(index, ast.Tuple) else OTHER


def _number(index: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(index)
    except ValueError:
        return None
    return value if isinstance(value, int) else None
