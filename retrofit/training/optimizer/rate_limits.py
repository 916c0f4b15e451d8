"""Limits that a script compares an optimizer's learning rate with: `if scheduler.get_last_lr()[0] < min_lr: break`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .rates import follows_optimizer

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def rate_limits(analysis: Analysis) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the numbers and settings that a rate is compared with, but zero: a rate that is scaled needs others."""
    for node, scope in reached_of(analysis, ast.Compare):
        sides = [node.left, *node.comparators]
        if len(sides) != 2 or not isinstance(node.ops[0], ORDERS):
            continue
        are_rates = [follows_optimizer(analysis, side, scope) for side in sides]
        if sum(are_rates) == 1:
            limit = sides[are_rates.index(False)]
            if not (isinstance(limit, ast.Constant) and not limit.value):
                yield limit, scope
