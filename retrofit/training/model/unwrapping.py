"""Expressions that take a model out of its wrapper: `model.module`, and calls that are given it and return a model."""

from __future__ import annotations

import ast
import re

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS, SAME_OBJECT

MAY_WRAP = re.compile(r"wrap|parallel|distribut|ddp|fsdp|prepare", re.IGNORECASE)  # in names of unknown functions


def takes_out(analysis: Analysis, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether an expression can be the model from inside a wrapper, or what a call makes of that.

    A call that wraps the model again, or whose name says so, does not count.
    """
    memory: Memory[bool] = analysis.fact("taken out", lambda: Memory(False))
    return memory.once((node, scope), lambda: _takes_out(analysis, node, scope))


def _takes_out(analysis: Analysis, node: ast.expr | None, scope: Scope) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "module"
    if isinstance(node, ast.IfExp):
        return any(takes_out(analysis, part, scope) for part in (node.body, node.orelse))
    if isinstance(node, ast.Call):
        return _call_takes_out(analysis, node, scope)
    if isinstance(node, ast.Name):
        owner, bindings = live_bindings(node, scope)
        values = [binding.value for binding in bindings if binding.kind == "value" and not binding.path]
        return bool(values) and all(takes_out(analysis, value, owner) for value in values)
    return False


def _call_takes_out(analysis: Analysis, node: ast.Call, scope: Scope) -> bool:
    if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
        return takes_out(analysis, node.func.value, scope)
    if last_name(node) == "getattr" and len(node.args) > 1:
        return isinstance(node.args[1], ast.Constant) and node.args[1].value == "module"
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not any(takes_out(analysis, argument, scope) for argument in given):
        return False
    inner = calls_within(analysis, node, scope)
    wraps = any(analysis.called(*place) & AVERAGING_WRAPPERS for place in inner)
    return not wraps and not MAY_WRAP.search(last_name(node))
