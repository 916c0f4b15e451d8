"""Draws inside of a loop that a step of the training goes through to its end: one for each sample of a batch."""

from __future__ import annotations

import ast
from collections.abc import Collection

from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.nodes import COMPREHENSIONS, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ...loops import LOOPS

REPEATS = (*LOOPS, *COMPREHENSIONS)


def is_repeated(
    analysis: Analysis, node: ast.expr, scope: Scope, around: Collection[ast.AST], followed: Collection[ast.AST]
) -> bool:
    """Return whether a step makes a draw several times: in a loop, or in a function that is called in one.

    `around` are the loops that a step is a turn of, `followed` is what its loss is computed from.
    """
    calls = [(call, where) for call, where in call_chains(analysis, node, scope) if call in followed]
    return any(_is_in_loop(*place, around) for place in [(node, scope), *calls])


def _is_in_loop(node: ast.AST, scope: Scope, around: Collection[ast.AST]) -> bool:
    inner = node
    for outer in scope.source.ancestors(node):
        if outer is scope.node or outer in around:
            return False
        if isinstance(outer, REPEATS) and not _gives_in_turn(outer) and not _is_gone_through(inner, outer):
            return True
        inner = outer
    return False


def _gives_in_turn(loop: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in walk(loop))


def _is_gone_through(inner: ast.AST, loop: ast.AST) -> bool:
    """Return whether a part of a loop is evaluated once, before its first turn."""
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        return inner is loop.iter
    return isinstance(inner, ast.comprehension) and inner is loop.generators[0]  # type: ignore[attr-defined]
