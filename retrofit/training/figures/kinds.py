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
LAYOUT = "layout"  # of all samples, in another order of dimensions
CHOSEN = "chosen"  # some of the samples' elements
SHAPE = "shape"  # of a batch
SIZE = "size"  # the number of samples, or of their elements
BATCH_SIZE = "batch size"  # the option: with a batch for all ranks together, a rank has a part of it only
PER_SIZE = "per size"
MEAN = "mean"  # over the samples
SUM = "sum"  # over the samples
LIST = "list"  # with an entry per sample, kept when the batch is over
REDUCIBLE = {MEAN, SUM, SIZE, BATCH_SIZE}
TENSORS = {BATCH, LAYOUT, CHOSEN}

KEEPING = READS | SAME_ENTRIES | INTEGER_CASTS | MASK_CASTS | SQUEEZES
TURNING = TRANSPOSES | TRANSPOSED
MAKING = FILLED | DRAWN | NEW | TENSOR_CLASSES | {"fill", "random", "multinomial", "choice"}
FORMATTING = CONTAINER_NAMES | {"format", "join", "zip", "str", "repr", "print"}
FIXED = TYPE_ATTRIBUTES | TYPE_METHODS | GRAPH
SCALARS = {"abs"}


def of_operator(op: ast.operator, left: str, right: str) -> str:
    """Return the kind of `left op right`; OTHER where nothing is known."""
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
    if name == "shape":
        return SHAPE if kind in TENSORS else SAME
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
        return LAYOUT if kind != CHOSEN else kind
    if name in FLATTENS:
        return BATCH if kind == LAYOUT else kind
    if name in VIEWS:
        given = call.args[first:] if call is not None else []
        return BATCH if kind == LAYOUT and len(given) == 1 and ast.unparse(given[0]) == "-1" else kind
    if name in ("max", "min"):  # along a dimension of the samples' own
        given = [a for a in (call.args[first:] if call else [])] + [k.value for k in (call.keywords if call else [])]
        is_inner = bool(given) and all(isinstance(a, (ast.Constant, ast.UnaryOp)) for a in given)
        return kind if is_inner and ast.unparse(given[0]) != "0" else OTHER
    return kind if name in ENTRYWISE else OTHER


def _of_reduction(kind: str, name: str, call: ast.Call | None, first: int) -> str:
    dims = _dims(call, first)
    if dims is None:
        return SUM if name == "sum" else OTHER if kind == CHOSEN else MEAN
    if kind in (CHOSEN, LAYOUT):
        return OTHER
    if 0 in dims:
        return SUM if name == "sum" else MEAN
    return kind if dims else OTHER


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
        return SHAPE
    return of_index(SHAPE, call.args[0])


def of_index(kind: str, index: ast.expr) -> str:
    """Return the kind of `x[index]` for an index that is the same on every rank."""
    if kind == SHAPE:
        number = _number(index)
        return SIZE if number == 0 else OTHER if number is None else SAME
    if kind in (MEAN, SUM):
        return kind
    if kind == WHOLE:
        return WHOLE if isinstance(index, ast.Slice) else BATCH
    if kind not in TENSORS:
        return OTHER
    if isinstance(index, ast.Constant) and isinstance(index.value, str):
        return kind
    if isinstance(index, ast.Tuple) and index.elts and isinstance(index.elts[0], ast.Slice):
        first = index.elts[0]
        return kind if first.lower is None and first.upper is None else OTHER
    if isinstance(index, ast.Slice) and kind == LAYOUT:
        return kind
    return OTHER


def _number(index: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(index)
    except ValueError:
        return None
    return value if isinstance(value, int) else None
