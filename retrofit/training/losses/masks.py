"""Boolean masks, `labels[labels != pad]`: the number of elements that they leave depends on the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.sources import Origin, Part, origins
from retrofit.analysis.flow.stored import literal_key
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import COMPARISONS, INTEGER_CASTS, RESHAPES, SAME_ENTRIES

COMPARING = COMPARISONS | {"bool", "nonzero"}
KEEPING = SAME_ENTRIES | INTEGER_CASTS | RESHAPES


def is_selected(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression can be what a mask leaves of a tensor."""
    return any(
        (
            isinstance(part, ast.Subscript)
            and any(_is_mask(origin.node) for origin in _same(analysis, part.slice, where))
        )
        or (isinstance(part, ast.Call) and _method(part) == "masked_select")
        for part, where, _ in _same(analysis, node, scope)
    )


def _same(analysis: Analysis, node: ast.expr, scope: Scope) -> Iterator[Origin]:
    """Yield an expression and what has the same entries, in another order or of another type: `x` of x.view(-1)."""

    def through(origin: Origin) -> list[Origin] | None:
        if isinstance(origin.node, ast.Call) and _method(origin.node) in KEEPING:
            return [origin.to(origin.node.func.value)]  # type: ignore[attr-defined]
        is_of_tensor = isinstance(origin.node, ast.Subscript) and not isinstance(literal_key(origin.node.slice), str)
        return [] if is_of_tensor else None

    return origins(analysis, [Origin(node, scope)], through)


def _is_mask(node: Part) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return True
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _method(node) in COMPARING)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
