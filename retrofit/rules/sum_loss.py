"""RF307 summed-loss-averaged: a loss summed over the batch, whose gradients are averaged over the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.analysis import Analysis
from retrofit.project.calls import returns_of
from retrofit.project.edits import surround
from retrofit.project.losses import is_of_all
from retrofit.project.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.project.training import backward_calls
from retrofit.project.values import Instance, LocalFunction, Result

from .finding import Finding, found

CODE = "RF307"
NAME = "summed-loss-averaged"
WHY = "DDP averages gradients over N processes; of a loss that is summed over the samples that leaves 1/N of the step."
HELP = "rd.sum_loss(loss).backward()"
BAD = """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
"""
GOOD = """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    rd.sum_loss(loss).backward()
"""
SCALING = "retrofit.distributed.sum_loss"
MOST_STEPS = 60


def find(project: Project) -> Iterator[Finding]:
    in_paths = {
        path.frames[0].node for path in project.paths if not is_of_all(project.analysis, project.distribution, path)
    }
    for call, scope in backward_calls(project.analysis):
        assert isinstance(call.func, ast.Attribute)
        if call not in in_paths or _has_factor(project, call.func.value, scope):
            continue
        if is_summed(project, call, scope):
            edits = surround(scope.source, call.func.value, "rd.sum_loss(", ")")
            yield found(CODE, scope.source, call, "the loss is a sum over the batch", HELP, edits)


def _has_factor(project: Project, loss: ast.expr, scope: Scope) -> bool:
    """Return whether the number of processes is in a loss already."""
    parts = [part for part in ast.walk(loss) if isinstance(part, ast.expr)]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    made = [b.value for name in names for b in scope.bindings.get(name, []) if b.value is not None]
    parts += [part for value in made for part in ast.walk(value) if isinstance(part, ast.expr)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    return any(SCALING in project.analysis.called(call, scope) for call in calls) or any(
        project.ranks.is_world_size(part, scope) for part in parts
    )


def is_summed(project: Project, backward: ast.Call, scope: Scope) -> bool:
    """Return whether what a backward call starts from is made of sums over the batch only."""
    assert isinstance(backward.func, ast.Attribute)
    signs = _Signs(project.analysis)
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
                self.look(inner.value, scope)

    def _look_at_call(self, call: ast.Call, scope: Scope) -> None:
        if _is_sum(call):
            self.sums = True
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
