"""Tell a loss that is a sum over the samples of a batch from a mean, and how all ranks' losses become one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.bindings import class_of_own, given_for
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import functions_run
from retrofit.analysis.scopes import Binding, Scope

from . import kinds
from .kinds import Kind
from .reader import LossReader

if TYPE_CHECKING:
    from retrofit.training import Project

MOST_STEPS = 200
MEAN_OF_RANKS, SUM_OF_RANKS, MEAN_OF_LAST = "rd.reduce_loss", "rd.loss.reduce_summed_loss", "rd.loss.reduce_last_loss"


def reader_of(project: Project) -> LossReader:
    return project.analysis.fact("loss reader", lambda: LossReader(project))


def loss_kind(project: Project, node: ast.expr, scope: Scope) -> Kind:
    """Return how a loss depends on the samples of its batch."""
    return reader_of(project).kind(node, scope)


def backward_kind(project: Project, backward: ast.Call, scope: Scope) -> Kind:
    """Return how what a backward call starts from depends on the samples; with a gradient for each it is their sum."""
    assert isinstance(backward.func, ast.Attribute)
    kind = loss_kind(project, backward.func.value, scope)
    has_gradient = bool(backward.args) or any(keyword.arg == "gradient" for keyword in backward.keywords)
    return kinds.summed_up(kind) if has_gradient and kind.has_rows else kind


def is_sum(kind: Kind) -> bool:
    """Return whether a loss is made of sums over the batch only."""
    return kind.parts == {kinds.SUM}


def reduction_for(project: Project, node: ast.expr, scope: Scope) -> str:
    """Return the function of the runtime that makes one figure of all ranks' values of a loss: "rd.reduce_loss".

    What is computed from sums over all ranks is the same on each, and so is the mean of it.
    """
    return SUM_OF_RANKS if is_sum(loss_kind(project, node, scope)) else MEAN_OF_RANKS


def sum_terms(project: Project, loss: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]] | None:
    """Return the terms of a loss that are sums over the batch, where others are not; None where they are not apart."""
    search = _Terms(project)
    terms = list(search.of(loss, scope))
    return None if search.is_lost else terms


class _Terms:
    def __init__(self, project: Project) -> None:
        self.project, self.analysis = project, project.analysis
        self.is_lost = False
        self.seen: set[tuple[ast.AST, Scope]] = set()

    def of(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        kind = loss_kind(self.project, node, scope)
        if kinds.SUM not in kind.parts or (node, scope) in self.seen:
            return
        self.seen.add((node, scope))
        if is_sum(kind):
            yield node, scope
            return
        inner = self._within(node, scope)
        self.is_lost |= not inner or len(self.seen) > MOST_STEPS
        for part, where in inner if not self.is_lost else ():
            yield from self.of(part, where)

    def _within(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return the expressions that a loss is linear in."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return [(node.left, scope), (node.right, scope)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return [(node.left, scope)]
        if isinstance(node, ast.UnaryOp):
            return [(node.operand, scope)]
        if isinstance(node, ast.IfExp):
            return [(node.body, scope), (node.orelse, scope)]
        if isinstance(node, ast.Name):
            owner, bindings = live_bindings(node, scope)
            return [place for binding in bindings for place in self._bound(binding, owner)]
        if isinstance(node, ast.Attribute):
            own = class_of_own(node, scope)
            found = self.analysis.classes.attribute_bindings(own, node.attr) if own is not None else []
            return [place for binding, where in found for place in self._bound(binding, where)]
        if isinstance(node, ast.Call):
            functions = functions_run(self.analysis, node, scope)
            returned = [(value, f.scope) for f in functions for value in returns_of(f.node)]
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) and not node.args else node.args[:1]
            return returned or [(part, scope) for part in receiver]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [(part, scope) for part in node.elts]
        return []

    def _bound(self, binding: Binding, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        if isinstance(binding.node, ast.AugAssign):
            is_sum_of = isinstance(binding.node.op, (ast.Add, ast.Sub))
            return [(binding.node.value, scope)] if is_sum_of else []
        if binding.kind == "parameter":
            return given_for(self.analysis, binding.name, scope)
        return self._at(binding.value, scope, binding.path) if binding.value is not None else []

    def _at(self, node: ast.expr, scope: Scope, path: tuple[int, ...]) -> list[tuple[ast.expr, Scope]]:
        """Return the item at `path` in a tuple, also in the tuples that a function of the project returns."""
        if not path:
            return [(node, scope)]
        if isinstance(node, (ast.Tuple, ast.List)) and path[0] < len(node.elts):
            return self._at(node.elts[path[0]], scope, path[1:])
        functions = functions_run(self.analysis, node, scope) if isinstance(node, ast.Call) else []
        return [place for f in functions for value in returns_of(f.node) for place in self._at(value, f.scope, path)]
