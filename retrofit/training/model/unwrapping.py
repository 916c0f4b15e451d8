"""Expressions that take a model out of its wrapper: `model.module`, and calls that are given it and return a model."""

from __future__ import annotations

import ast
import re

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS, SAME_OBJECT

MAY_WRAP = re.compile(r"wrap|parallel|distribut|ddp|fsdp|prepare", re.IGNORECASE)  # in names of unknown functions
MOST_DEPTH = 6


def takes_out(analysis: Analysis, node: ast.expr | None, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression can be the model from inside a wrapper, or what a call makes of that.

    A call that wraps the model again, or whose name says so, does not count.
    """
    if depth == 0 or node is None:
        return False
    if isinstance(node, ast.Attribute):
        return node.attr == "module"
    if isinstance(node, ast.IfExp):
        return any(takes_out(analysis, part, scope, depth - 1) for part in (node.body, node.orelse))
    if isinstance(node, ast.Call):
        return _call_takes_out(analysis, node, scope, depth)
    if isinstance(node, ast.Name):
        owner, bindings = scope.find(node.id) or (scope, [])
        before = [b for b in bindings if owner is not scope or getattr(b.node, "lineno", 0) < node.lineno]
        values = [b.value for b in before if b.kind == "value" and not b.path]
        return bool(values) and all(takes_out(analysis, value, owner, depth - 1) for value in values)
    return False


def _call_takes_out(analysis: Analysis, node: ast.Call, scope: Scope, depth: int) -> bool:
    if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
        return takes_out(analysis, node.func.value, scope, depth - 1)
    if last_name(node) == "getattr" and len(node.args) > 1:
        return isinstance(node.args[1], ast.Constant) and node.args[1].value == "module"
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not any(takes_out(analysis, argument, scope, depth - 1) for argument in given):
        return False
    inner = calls_within(analysis, node, scope)
    wraps = any(analysis.called(*place) & AVERAGING_WRAPPERS for place in inner)
    return not wraps and not MAY_WRAP.search(last_name(node))
