"""Tests of the time, which each process reads from its own clock."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.files import OWN_CLOCKS

from .from_main import is_from_main

OF_DURATIONS = frozenset({"int", "float", "round", "abs", "min", "max", "total_seconds"})
UNITS = frozenset({"seconds", "days", "microseconds"})  # of a datetime.timedelta


def is_by_own_clock(analysis: Analysis, test: ast.expr, scope: Scope) -> bool:
    """Return whether a test is of the time, and not of what rank 0 has read for all processes."""
    return _reads_clock(analysis, test, scope) and not is_from_main(analysis, test, scope)


def _reads_clock(analysis: Analysis, test: ast.expr, scope: Scope) -> bool:
    """Return whether a test is computed from the time: through names, functions of the project and arithmetic."""

    def parts(origin: Origin) -> list[Origin] | None:
        node = origin.node
        if isinstance(node, ast.AugAssign):
            return [origin.to(node.value)]
        if isinstance(node, ast.BinOp):
            return [origin.to(node.left), origin.to(node.right)]
        if isinstance(node, ast.Compare):
            return [origin.to(part) for part in (node.left, *node.comparators)]
        if isinstance(node, ast.UnaryOp):
            return [origin.to(node.operand)]
        if isinstance(node, ast.Attribute):
            return [origin.to(node.value)] if node.attr in UNITS else []
        if isinstance(node, ast.Call) and last_name(node) in OF_DURATIONS:
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return [origin.to(part) for part in (*receiver, *node.args)]
        return None

    return any(
        isinstance(origin.node, ast.Call) and analysis.called(origin.node, origin.scope) & OWN_CLOCKS
        for origin in origins(analysis, [Origin(test, scope)], parts)
    )
