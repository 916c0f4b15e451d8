"""Variables and attributes that a statement or a call writes to, as a whole or in part."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import OPERATORS, RETURNS_ITSELF

EMPTYING = RETURNS_ITSELF | {"zero_", "fill_", "normal_", "uniform_"}
WRITING = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Call)  # nodes that can write


@dataclass(frozen=True)
class Write:
    """A place at which a state that the loss depends on gets something of a batch: `value`, in `node`."""

    node: ast.AST
    value: ast.expr
    scope: Scope
    name: str


def writes_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield the variables that a node writes, with what they get, and whether they keep something of before."""
    for target, value in _targets(node):
        place, is_part = _without_parts(target)
        is_data = isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and target.value is place
        yield place, value, (is_part and not is_data) or isinstance(node, (ast.AugAssign, ast.Call))


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a node writes, with what it writes there."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((part, node.value) for part in _parts(target))
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Call) and (filled := [k.value for k in node.keywords if k.arg == "out"]):
        yield from ((filled[0], value) for value in node.args)  # torch.mul(images, 2, out=inputs)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.startswith("_") and name not in EMPTYING:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield from ((node.func, value) for value in given)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """Yield what an assignment gives a value: `out`, `h` and `c` of out, (h, *c) = model(x)."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _parts(part.value if isinstance(part, ast.Starred) else part)
    else:
        yield target


def _without_parts(node: ast.expr) -> tuple[ast.expr, bool]:
    """Return the variable of which a part is written: `self.queue` of self.queue.data[:, 0].mul_(2); and whether so."""
    inner = node
    while True:
        if isinstance(inner, ast.Subscript) or (isinstance(inner, ast.Attribute) and _is_of_tensor(inner)):
            inner = inner.value
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        else:
            return inner, inner is not node


def _is_of_tensor(node: ast.Attribute) -> bool:
    is_layers = node.attr == "weight" and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    return is_layers or node.attr == "data" or node.attr.endswith("_")


def changes_in_place(analysis: Analysis, scope: Scope) -> dict[str, list[ast.AugAssign]]:
    """Return `loss.div_(n)` and the like, statements of their own in a scope, as `loss /= n`, by name."""
    known: dict[Scope, dict[str, list[ast.AugAssign]]] = analysis.fact("changes in place", dict)
    if scope not in known:
        known[scope] = _in_place(scope)
    return known[scope]


def _in_place(scope: Scope) -> dict[str, list[ast.AugAssign]]:
    found: dict[str, list[ast.AugAssign]] = defaultdict(list)
    for node in own_nodes(scope.node):
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
            continue
        operator = OPERATORS.get(call.func.attr[:-1]) if call.func.attr.endswith("_") else None
        if isinstance(call.func.value, ast.Name) and operator is not None:
            statement = ast.copy_location(ast.AugAssign(call.func.value, operator, call.args[0]), node)
            scope.source.parents[statement] = scope.source.parents[node]
            found[call.func.value.id].append(statement)
    return found


def sorted_in_place(analysis: Analysis, scope: Scope) -> dict[str, ast.Call]:
    """Return `losses.sort()`, statements of their own in a scope, by name: a list has its entries in their order."""

    def found() -> dict[str, ast.Call]:
        calls = (node.value for node in own_nodes(scope.node) if isinstance(node, ast.Expr))
        return {
            call.func.value.id: call
            for call in calls
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "sort"
            if isinstance(call.func.value, ast.Name)
        }

    known: dict[Scope, dict[str, ast.Call]] = analysis.fact("sorted in place", dict)
    if scope not in known:
        known[scope] = found()
    return known[scope]
