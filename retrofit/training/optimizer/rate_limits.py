"""Limits that a script compares an optimizer's learning rate with: `if scheduler.get_last_lr()[0] < min_lr: break`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .rates import is_own_rate

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def rate_limits(analysis: Analysis) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the numbers and settings that a rate is compared with, but zero: a rate that is scaled needs others."""
    for node, scope in reached_nodes(analysis).of(ast.Compare):
        sides = [node.left, *node.comparators]
        if len(sides) != 2 or not isinstance(node.ops[0], ORDERS):
            continue
        are_rates = [_is_rate(analysis, side, scope) for side in sides]
        if sum(are_rates) == 1:
            limit = sides[are_rates.index(False)]
            if not (isinstance(limit, ast.Constant) and not limit.value):
                yield limit, scope


def _is_rate(analysis: Analysis, side: ast.expr, scope: Scope) -> bool:
    """Return whether this is the optimizer's rate: read there, kept in a variable, or returned by a function."""
    places = [(side, scope)]
    if isinstance(side, (ast.Name, ast.Attribute)):
        places += [(binding.value, where) for binding, where in bindings_of(analysis, side, scope) if binding.value]
    for call, where in [place for place in places if isinstance(place[0], ast.Call)]:
        functions = analysis.functions_called(call, where)  # type: ignore[arg-type]
        places += [(part, function.scope) for function in functions for part in returns_of(function.node)]
    return any(is_own_rate(analysis, part, where) for expression, where in places for part in walk(expression))
