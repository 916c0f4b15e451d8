"""Calls that ask for the rank before the process group exists, and are told that this is rank 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.distributed import ASKS_FOR_GROUP, GET_RANK, JOIN_GROUP

from ..distribution import Distribution


def asked_too_early(analysis: Analysis, distribution: Distribution) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls, before the one that joins the group and in the same function, that ask for the rank.

    Only those with an answer for the time without a group: `dist.get_rank() if dist.is_initialized() else 0`.
    """
    for join in distribution.joins:
        if _is_under_condition(analysis, join.scope, join.call):
            continue
        for node in own_nodes(join.scope.node):
            if isinstance(node, ast.Call) and node.lineno < join.call.lineno and _asks(analysis, node, join.scope):
                yield node, join.scope


def _is_under_condition(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether the group may exist already: `if not dist.is_initialized(): dist.init_process_group(...)`."""
    tests = [outer.test for outer in scope.source.ancestors(node) if isinstance(outer, ast.If)]
    return any(_calls(analysis, test, scope) & ASKS_FOR_GROUP for test in tests)


def _asks(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    if GET_RANK in analysis.called(call, scope):
        outer = scope.source.parents.get(call)
        return isinstance(outer, ast.IfExp) and _calls(analysis, outer.test, scope) & ASKS_FOR_GROUP != set()
    return any(
        GET_RANK in names and names & ASKS_FOR_GROUP and JOIN_GROUP not in names
        for names in _called_inside(analysis, call, scope)
    )


def _called_inside(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[set[str]]:
    """Yield what each function of the project that a call can run calls itself."""
    for function in analysis.functions_called(call, scope):
        calls = (node for node in own_nodes(function.node) if isinstance(node, ast.Call))
        yield {name for inner in calls for name in analysis.called(inner, function.scope)}


def _calls(analysis: Analysis, node: ast.expr, scope: Scope) -> set[str]:
    """Return what an expression calls, itself or in functions of the project."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    own = {name for call in calls for name in analysis.called(call, scope)}
    return own.union(*(names for call in calls for names in _called_inside(analysis, call, scope)))
