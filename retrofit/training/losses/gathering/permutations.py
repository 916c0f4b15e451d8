"""Permutations of the rows of a batch, and their inverses: `order = torch.randperm(n)`, `torch.argsort(order)`."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

PERMUTATIONS = frozenset({"torch.randperm", "numpy.random.permutation"})
INVERSES = frozenset({"argsort"})


def permutation_of(analysis: Analysis, index: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the call that draws the permutation which an index is; None for others, and where there are several."""
    found = list(origins(analysis, [Origin(index, scope)]))
    if any(isinstance(origin.node, ast.Subscript) for origin in found):
        return None  # some of the rows: torch.randperm(n)[:k]
    ends = [origin for origin in found if not list(sources(analysis, origin))]
    calls = [end.node for end in ends if isinstance(end.node, ast.Call)]
    is_one = len(calls) == 1 and len(ends) == 1 and len(calls[0].args) == 1
    return calls[0] if is_one and analysis.called(calls[0], ends[0].scope) & PERMUTATIONS else None


def inverted(analysis: Analysis, index: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the permutation that an index takes back: `order` of torch.argsort(order), also under a name."""
    found = origins(analysis, [Origin(index, scope)])
    ends = [origin for origin in found if not list(sources(analysis, origin))]
    if len(ends) != 1 or not isinstance(ends[0].node, ast.Call) or last_name(ends[0].node) not in INVERSES:
        return None
    call = ends[0].node
    if call.keywords or len(call.args) > 1:
        return None
    is_method = not call.args and isinstance(call.func, ast.Attribute)
    order = call.func.value if is_method else call.args[0]  # type: ignore[attr-defined]
    return permutation_of(analysis, order, ends[0].scope)
