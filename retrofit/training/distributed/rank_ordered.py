"""Detect code that processes run one after the other, rank 0 first: a download, a cache."""

from __future__ import annotations

import ast
from collections.abc import Collection

from retrofit.analysis.calls import body_of
from retrofit.analysis.flow.calls.graph import holds_on_every_path
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ..placement import block_of
from ..torch_api.distributed import BARRIERS
from ..torch_api.runtime import MAIN_FIRST
from .ranks.rank_guards import OTHERS, side_of_test


def runs_in_turn(analysis: Analysis, scope: Scope, node: ast.AST, more: Collection[ast.AST] = frozenset()) -> bool:
    """Return whether rank 0 is done with a node before the others begin, here or where its function is called.

    `more` are statements of which that is known.
    """

    def is_in_turn(place: ast.AST, where: Scope) -> bool:
        around = (place, *where.source.ancestors(place))
        return any(outer in more for outer in around) or _is_in_turn_here(analysis, where, place)

    reached = known_scopes(analysis)
    return holds_on_every_path(analysis, node, scope, is_in_turn, lambda site: site.scope in reached)


@answered_once
def _is_in_turn_here(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    inner = node
    for outer in scope.source.ancestors(node):
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            contexts = [item.context_expr for item in outer.items if isinstance(item.context_expr, ast.Call)]
            if any(_makes_others_wait(analysis, context, scope) for context in contexts):
                return True
        if isinstance(inner, ast.stmt):
            block = block_of(scope.source, inner)
            if any(_is_waiting_of_others(analysis, earlier, scope) for earlier in block[: block.index(inner)]):
                return True
        if outer is scope.node:
            decorators = getattr(outer, "decorator_list", [])
            calls = [decorator for decorator in decorators if isinstance(decorator, ast.Call)]
            return any(MAIN_FIRST in analysis.called(call, scope.parent or scope) for call in calls)
        inner = outer
    return False


def _makes_others_wait(analysis: Analysis, context: ast.Call, scope: Scope) -> bool:
    """Return whether this is the runtime's context, or one of the project in which the others wait first."""
    if MAIN_FIRST in analysis.called(context, scope):
        return True
    functions = analysis.functions_called(context, scope)
    statements = [(part, function.scope) for function in functions for part in body_of(function.node)]
    return any(_is_waiting_of_others(analysis, statement, where) for statement, where in statements)


def _is_waiting_of_others(analysis: Analysis, statement: ast.AST, scope: Scope) -> bool:
    """Return whether this is `if rank != 0: dist.barrier()`."""
    if not isinstance(statement, ast.If) or side_of_test(analysis, statement.test, scope) != OTHERS:
        return False
    calls = [part for inner in statement.body for part in walk(inner) if isinstance(part, ast.Call)]
    return any(analysis.called(call, scope) & BARRIERS for call in calls)
