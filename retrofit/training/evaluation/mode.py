"""Detect evaluations that run their model without gradients, with dropout and BatchNorm switched off."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.calls.graph import holds_on_every_path
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.inference import Analysis

from ..model.gradients import has_gradients, is_switched_off, switches_on
from .loop import Loop, NotShareable

WITH_GRADIENTS = "the model runs with gradients, in which all processes take part"


class Mode:
    """Looks at a loop, at what is around it, and at the callers of its function."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.analysis = loop, loop.analysis

    def require_evaluation(self) -> None:
        for call, inner, scope in self.loop.model_calls():
            if has_gradients(self.analysis, self.loop.scope, call) and not is_switched_off(self.analysis, scope, inner):
                raise NotShareable(WITH_GRADIENTS)
        if switches_on(self.analysis, self.loop.node, self.loop.scope):
            raise NotShareable(WITH_GRADIENTS)
        if not is_in_evaluation_mode(self.analysis, self.loop.node, self.loop.scope):
            raise NotShareable("model.eval() was not found before it")


def is_in_evaluation_mode(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether `model.eval()` comes before a node on every way to it."""
    return holds_on_every_path(analysis, node, scope, _is_set_before)


def _is_set_before(node: ast.AST, scope: Scope) -> bool:
    """Return whether `model.eval()` comes before a node in its function."""
    for call in own_nodes(scope.node).of(ast.Call):
        if isinstance(call.func, ast.Attribute) and place_of(call) < place_of(node):
            is_off = [isinstance(a, ast.Constant) and a.value is False for a in call.args]
            if (call.func.attr == "eval" and not call.args) or (call.func.attr == "train" and is_off == [True]):
                return True
    return False
