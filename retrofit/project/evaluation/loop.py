"""A loop that evaluates, with what is asked of it again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis import Analysis
from ..homes import Home, homes_of, upstream
from ..loaders import is_loader, loaders_in
from ..optimizers import is_module
from ..outputs import PROGRESS_BARS
from ..scopes import Scope
from ..source import Source


class NotShareable(Exception):
    """Why every process has to run all batches of an evaluation."""


@dataclass(frozen=True)
class Loop:
    """A `for` loop in a scope of a project, and the variables that hold its models."""

    analysis: Analysis
    node: ast.For
    scope: Scope
    models: frozenset[Home]

    @property
    def source(self) -> Source:
        return self.scope.source

    def calls_model(self, node: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls in `node` that run a model."""
        return (call for call in calls_in(node) if self._is_model(call))

    def _is_model(self, call: ast.Call) -> bool:
        if any(is_module(self.analysis, value) for value in self.analysis.evaluate(call.func, self.scope)):
            return True
        homes = homes_of(self.analysis, call.func, self.scope)
        return any(({home} | upstream(self.analysis, home)) & self.models for home in homes)

    def loader(self) -> tuple[ast.expr, ast.expr] | None:
        """Return what is drawn from and the one loader in it, behind enumerate and a progress bar made before."""
        node: ast.expr = self.node.iter
        if isinstance(node, ast.Call) and self.is_called(node, {"enumerate"}) and node.args:
            node = node.args[0]
        if isinstance(node, ast.Name):
            made = [binding.value for binding in self.scope.bindings.get(node.id, []) if binding.value is not None]
            if len(made) == 1 and self.is_called(made[0], PROGRESS_BARS):
                node = made[0]
        found = loaders_in(self.analysis, node, self.scope)
        is_one = len(found) == 1 and any(
            is_loader(self.analysis, value) for value in self.analysis.evaluate(found[0], self.scope)
        )
        return (node, found[0]) if is_one else None

    def is_called(self, node: ast.AST, names: set[str]) -> bool:
        """Return whether `node` calls one of these functions, given by their full names."""
        return isinstance(node, ast.Call) and bool(self.analysis.called(node, self.scope) & names)


def calls_in(root: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(root) if isinstance(node, ast.Call))


def root_name(node: ast.expr | None) -> str | None:
    """Return the name at the bottom of `name`, `name.attribute` and `name[key]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
