"""The number of axes of a tensor, where the script shows it: by the shapes that it is given on the way."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, Result
from retrofit.training.torch_api.tensors import (
    CLAMPS,
    NONLINEAR,
    REDUCTIONS,
    SAME_ENTRIES,
    TRANSPOSED,
    TRANSPOSES,
    VIEWS,
    not_in_place,
)

KEEPS = (
    SAME_ENTRIES | NONLINEAR | CLAMPS | TRANSPOSES | {"softmax", "log_softmax", "normalize", "abs", "relu", "dropout"}
)
SIZED = VIEWS | {"expand", "repeat", "permute"}
OF_LAYERS = {"Conv1d": 3, "Conv2d": 4, "Conv3d": 5}
KEPT_BY_LAYERS = {"Linear", "LayerNorm", "Dropout", "ReLU", "GELU", "Tanh", "Sigmoid", "Softmax", "Identity"}
MOST_STEPS = 12


def differing_axes(analysis: Analysis, left: ast.expr, right: ast.expr, scope: Scope) -> int | None:
    """Return how many axes more the first of two tensors has, also where both are made of one that is not known."""
    one, other = (number_of_axes(analysis, part, scope) for part in (left, right))
    if one is None and other is None and (base := _indexed(left)) == _indexed(right):
        one, other = (_added(part) for part in (left, right)) if base else (None, None)
    return None if one is None or other is None else one - other


def _indexed(node: ast.expr) -> str:
    """Return the variable of which an expression takes entries, or puts axes into it: `z` of z[:, 0][None]."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _added(node: ast.expr) -> int | None:
    """Return how many axes more than that an expression has."""
    if not isinstance(node, ast.Subscript):
        return 0
    return _of_entry(_added(node.value), node.slice)


def swaps_first_axes(analysis: Analysis, node: ast.Attribute, scope: Scope) -> bool:
    """Return whether this is x.T, or x.mT of a matrix: x is one, or its columns are what is reduced at once."""
    number = number_of_axes(analysis, node.value, scope) if node.attr in ("mT", "mH") else 0
    is_reduced = number is None and last_name(scope.source.parents.get(node, node)) in REDUCTIONS
    return node.attr in ("T", "H") or number == 2 or is_reduced


def number_of_axes(analysis: Analysis, node: ast.expr, scope: Scope, steps: int = MOST_STEPS) -> int | None:
    """Return how many axes a tensor has, None where that cannot be seen."""
    if steps == 0:
        return None

    def of(part: ast.expr) -> int | None:
        return number_of_axes(analysis, part, scope, steps - 1)

    if isinstance(node, ast.Name):
        owner, bindings = live_bindings(node, scope)
        found = {
            number_of_axes(analysis, b.value, owner, steps - 1)
            if b.kind == "value" and b.value and not b.path
            else None
            for b in bindings
        }
        return next(iter(found)) if len(found) == 1 else None
    if isinstance(node, ast.Attribute) and node.attr in ("T", "H"):
        return of(node.value) or 2  # of a matrix, as torch asks for
    if isinstance(node, ast.Attribute):
        return of(node.value) if node.attr in TRANSPOSED | {"data"} else None
    if isinstance(node, ast.BinOp):
        sides = {of(node.left), of(node.right) if not isinstance(node.right, ast.Constant) else of(node.left)}
        return None if None in sides else max(side for side in sides if side is not None)
    if isinstance(node, ast.UnaryOp):
        return of(node.operand)
    if isinstance(node, ast.Subscript):
        return _of_entry(of(node.value), node.slice)
    return _of_call(analysis, node, scope, steps) if isinstance(node, ast.Call) else None


def _of_call(analysis: Analysis, node: ast.Call, scope: Scope, steps: int) -> int | None:
    name = not_in_place(last_name(node))
    values = analysis.evaluate(node.func, scope)
    made = [value.builder.rpartition(".")[2] for value in values if isinstance(value, Result)]
    is_function = any(isinstance(value, External) and "." in value.name for value in values)
    is_method = isinstance(node.func, ast.Attribute) and not is_function and not made
    given = [node.func.value, *node.args] if is_method else list(node.args)  # type: ignore[attr-defined]
    if made:
        known = {OF_LAYERS.get(part) for part in made}
        if None not in known:
            return next(iter(known)) if len(known) == 1 else None
        name = "clone" if set(made) <= KEPT_BY_LAYERS else ""
    if not given:
        return None
    rest = given[1:]
    if name in SIZED:
        sizes = list(rest[0].elts) if len(rest) == 1 and isinstance(rest[0], (ast.Tuple, ast.List)) else rest
        is_shape = len(sizes) < 2 or any(isinstance(part, ast.Starred) for part in sizes)
        return None if is_shape else len(sizes)
    if name not in KEEPS | REDUCTIONS | {"unsqueeze", "stack", "flatten", "bmm"}:
        return None
    if name == "bmm":
        return 3
    before = number_of_axes(analysis, given[0], scope, steps - 1)
    if name == "t":
        return before or 2
    if name == "flatten":
        return 2 if [ast.unparse(part) for part in rest] == ["1"] else None
    if before is None or name in KEEPS:
        return before
    if name == "unsqueeze":
        return before + 1
    return _reduced(before, node, rest) if name in REDUCTIONS else None


def _reduced(before: int, node: ast.Call, rest: list[ast.expr]) -> int | None:
    """Return the number of axes after a sum along one of them."""
    axes = [*rest[:1], *(k.value for k in node.keywords if k.arg in ("dim", "axis"))]
    if len(axes) != 1 or any(k.arg in ("keepdim", "keepdims") for k in node.keywords) or len(rest) > 1:
        return None
    return before - 1 if isinstance(axes[0], (ast.Constant, ast.UnaryOp)) else None


def _of_entry(before: int | None, index: ast.expr) -> int | None:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if before is None or any(not isinstance(part, (ast.Slice, ast.Constant)) for part in parts):
        return None
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    if any(value is not None and not isinstance(value, int) for value in values):
        return None
    return before + sum(1 if value is None else -1 for value in values)
