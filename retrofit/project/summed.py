"""Whether a training loss is a sum over the samples of a batch, or a mean."""

from __future__ import annotations

import ast

from .analysis import Analysis
from .calls import returns_of
from .scopes import FUNCTIONS, Scope, own_nodes
from .values import Instance, LocalFunction, Result

MOST_STEPS = 60


def is_summed(analysis: Analysis, backward: ast.Call, scope: Scope) -> bool:
    """Return whether what a backward call starts from is made of sums over the batch only."""
    assert isinstance(backward.func, ast.Attribute)
    signs = _Signs(analysis)
    signs.look(backward.func.value, scope)
    return signs.sums and not signs.means


class _Signs:
    """Whether a loss is made of sums or of means over the batch."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.sums = self.means = False
        self.seen: set[ast.AST] = set()

    def look(self, node: ast.expr, scope: Scope) -> None:
        if node in self.seen or len(self.seen) > MOST_STEPS:
            return
        self.seen.add(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self._look_at_call(part, scope)
            elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
                self.means = True  # of something by its size, most likely
            elif isinstance(part, ast.Name):
                self._look_behind(part.id, scope)

    def _look_behind(self, name: str, scope: Scope) -> None:
        for inner in own_nodes(scope.node):
            if isinstance(inner, ast.Assign) and any(_names(target, name) for target in inner.targets):
                if isinstance(inner.value, (ast.Call, ast.BinOp)):
                    self.look(inner.value, scope)
            elif isinstance(inner, ast.AugAssign) and _names(inner.target, name):
                self.means = self.means or isinstance(inner.op, ast.Div)  # loss /= len(images)
                self.look(inner.value, scope)

    def _look_at_call(self, call: ast.Call, scope: Scope) -> None:
        if _is_sum(call):
            self.sums = True
            return
        parts = self._stacked(call, scope)
        if parts:  # a sum of losses: torch.stack(losses).sum()
            for part in parts:
                self.look(part, scope)
            return
        for value in self.analysis.evaluate(call.func, scope):
            if isinstance(value, LocalFunction) and isinstance(value.node, FUNCTIONS):
                for returned in returns_of(value.node):
                    self.look(returned, value.scope)
            elif isinstance(value, Instance):
                method = self.analysis.classes.method(value.scope, "forward")
                for returned in returns_of(method.node) if method else []:
                    self.look(returned, method.scope)  # type: ignore[union-attr]
            elif isinstance(value, Result) and value.maker.startswith("torch.nn."):
                if _is_sum(value.call):
                    self.sums = True
                elif value.maker.endswith("Loss"):
                    self.means = True
        names = self.analysis.called(call, scope)
        if "retrofit.distributed.global_mean" in names:
            self.means = True
        if any(name.startswith("torch.nn.functional.") and _is_loss(name) for name in names):
            self.means = True
        if isinstance(call.func, ast.Attribute):
            if call.func.attr == "mean":
                self.means = True
            elif call.func.attr == "sum" and not call.args and not call.keywords:
                self.sums = True
        if names & {"torch.sum"} and len(call.args) == 1 and not call.keywords:
            self.sums = True

    def _stacked(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """Return what was appended to the list that a call sums up the entries of."""
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "sum" and not call.args
        if not is_method and not self.analysis.called(call, scope) & {"torch.sum", "sum"}:
            return []
        of = call.func.value if is_method else call.args[0] if call.args else None  # type: ignore[attr-defined]
        if isinstance(of, ast.Call) and self.analysis.called(of, scope) & {"torch.stack"} and of.args:
            of = of.args[0]
        names = {of.id} if isinstance(of, ast.Name) else set()
        return [
            node.args[0]
            for node in own_nodes(scope.node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
            if isinstance(node.func.value, ast.Name) and node.func.value.id in names and node.args
        ]


def _is_sum(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Constant):
            if keyword.arg == "reduction" and keyword.value.value == "sum":
                return True
            if keyword.arg == "size_average" and keyword.value.value is False:
                return True
    return False


def _is_loss(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "loss" in last or last in (
        "cross_entropy",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
    )


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
