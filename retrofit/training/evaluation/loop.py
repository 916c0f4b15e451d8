"""A loop that evaluates, with what is asked of it again and again."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.model.containers import variables_holding
from retrofit.training.model.indirect.library_calls import runs_of
from retrofit.training.model.modules import is_module

from ..data.batches import is_iterator, layers
from ..data.drawn import is_loader


class NotShareable(Exception):
    """Why every process has to run all batches of an evaluation."""


@dataclass(frozen=True)
class Loop:
    """A `for` loop in a scope of a project, and the variables that hold its models."""

    analysis: Analysis
    node: ast.For
    scope: Scope
    models: frozenset[Variable]

    @property
    def source(self) -> Source:
        return self.scope.source

    def model_calls(self) -> Iterator[tuple[ast.Call, ast.Call, Scope]]:
        """Yield the calls in the loop that run a model, each with the call of the model itself and its scope.

        These are two where a function of the project runs the model: `self.predict(batch)`.
        """
        for call in calls_in(self.node):
            for inner, scope in calls_within(self.analysis, call, self.scope):
                if self._is_model(inner, scope):
                    yield call, inner, scope
                    break  # what the model calls in turn runs as the model does

    def _is_model(self, call: ast.Call, scope: Scope) -> bool:
        if any(is_module(self.analysis, value) for value in self.analysis.evaluate(call.func, scope)):
            return True
        runs = [call.func, *(model for *_, model in runs_of(self.analysis, call, scope))]
        variables = {variable for run in runs for variable in variables_holding(self.analysis, run, scope)}
        return any(({variable} | upstream(self.analysis, variable)) & self.models for variable in variables)

    def loader(self) -> tuple[list[ast.expr], ast.expr] | None:
        """Return what the loop draws from, and the one loader that hands on all its batches there, inside the others.

        None where another place needs to know how many batches that loader gives: `zip(loader, names)`, `len(bar)`.
        """
        outer = layers(self.analysis, self.node.iter, self.scope)
        names = {node.id for node in outer[:-1] if isinstance(node, ast.Name)}
        made = [inner for node, inner in zip(outer, outer[1:]) if isinstance(node, ast.Name)]
        if not all(is_iterator(self.analysis, node, self.scope) for node in made) or self._is_counted(names):
            return None
        values = self.analysis.evaluate(outer[-1], self.scope)
        is_one = any(is_loader(self.analysis, value) for value in values)
        return (outer, outer[-1]) if is_one else None

    def _is_counted(self, names: set[str]) -> bool:
        """Return whether the length of one of these is asked for."""
        lengths = (node for node in own_nodes(self.scope.node) if self.is_called(node, {"len"}))
        return any(isinstance(part, ast.Name) and part.id in names for node in lengths for part in node.args)  # type: ignore[attr-defined]

    def is_called(self, node: ast.AST, names: Collection[str]) -> bool:
        """Return whether `node` calls one of these functions, given by their full names."""
        return isinstance(node, ast.Call) and not self.analysis.called(node, self.scope).isdisjoint(names)


def calls_in(root: ast.AST) -> Iterator[ast.Call]:
    return (node for node in walk(root) if isinstance(node, ast.Call))


def root_name(node: ast.expr | None) -> str | None:
    """Return the name at the bottom of `name`, `name.attribute` and `name[key]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
