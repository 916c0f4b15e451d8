"""Boolean masks, `labels[labels != pad]`: the number of elements that they leave depends on the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import COMPARISONS, INTEGER_CASTS, RESHAPES, SAME_ENTRIES

COMPARING = COMPARISONS | {"bool", "nonzero"}
KEEPING = SAME_ENTRIES | INTEGER_CASTS | RESHAPES
MOST_STEPS = 20


def is_selected(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression can be what a mask leaves of a tensor."""
    return any(
        (isinstance(way, ast.Subscript) and any(_is_mask(inner) for inner in _ways(way.slice, scope)))
        or (isinstance(way, ast.Call) and _method(way) == "masked_select")
        for way in _ways(node, scope)
    )


def _ways(node: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Yield an expression, what a function has assigned to its name, and what `x.view(-1)` is made of."""
    waiting = [node]
    seen: set[ast.expr] = set()
    while waiting and len(seen) < MOST_STEPS:
        way = waiting.pop()
        if way in seen:
            continue
        seen.add(way)
        yield way
        if isinstance(way, ast.Name):
            bindings = scope.bindings.get(way.id, [])
            waiting += [b.value for b in bindings if b.kind == "value" and not b.path and b.value is not None]
        elif isinstance(way, ast.Call) and _method(way) in KEEPING:
            waiting.append(way.func.value)  # type: ignore[attr-defined]


def _is_mask(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return True
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _method(node) in COMPARING)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
