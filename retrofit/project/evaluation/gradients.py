"""Whether an evaluation runs its model without gradients, with dropout and BatchNorm switched off."""

from __future__ import annotations

import ast

from ..scopes import FUNCTIONS, Scope, own_nodes
from .loop import Loop, NotShareable

NO_GRAD = {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.set_grad_enabled"}
DEEPEST = 4  # callers above an evaluation that are looked at


class Gradients:
    """Looks at a loop, at what is around it, and at the callers of its function."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.analysis = loop, loop.analysis

    def require_none(self) -> None:
        for call in self.loop.calls_model(self.loop.node):
            if not self._is_without_gradients(self.loop.scope, call, DEEPEST):
                raise NotShareable("the model runs with gradients, in which all processes take part")
        if not self._is_evaluating(self.loop.scope, self.loop.node, DEEPEST):
            raise NotShareable("model.eval() was not found in front of it")

    def _is_without_gradients(self, scope: Scope, node: ast.AST, depth: int) -> bool:
        for outer in scope.source.ancestors(node):
            if isinstance(outer, ast.With) and any(self._is_no_grad(i.context_expr, scope) for i in outer.items):
                return True
            if outer is scope.node:
                break
        function = scope.node
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if any(self._is_no_grad(decorator, scope.parent or scope) for decorator in function.decorator_list):
            return True
        sites = self.analysis.callers(function) if depth else []
        return bool(sites) and all(self._is_without_gradients(site.scope, site.call, depth - 1) for site in sites)

    def _is_no_grad(self, node: ast.expr, scope: Scope) -> bool:
        if not isinstance(node, ast.Call):
            return bool(self.analysis.named(node, scope) & NO_GRAD)
        names = self.analysis.called(node, scope)
        if "torch.set_grad_enabled" in names:
            return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
        return bool(names & NO_GRAD)

    def _is_evaluating(self, scope: Scope, node: ast.AST, depth: int) -> bool:
        line = getattr(node, "lineno", 0)
        for call in own_nodes(scope.node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.lineno < line:
                is_off = [isinstance(a, ast.Constant) and a.value is False for a in call.args]
                if (call.func.attr == "eval" and not call.args) or (call.func.attr == "train" and is_off == [True]):
                    return True
        sites = self.analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) and depth else []
        return bool(sites) and all(self._is_evaluating(site.scope, site.call, depth - 1) for site in sites)
