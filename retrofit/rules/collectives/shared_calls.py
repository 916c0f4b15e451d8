"""Calls that every process must make: collectives, forward passes through DDP, and functions that lead to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import is_for_main, side_of
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.layers import has_buffers
from retrofit.training.torch_api.distributed import EVERY_RANK
from retrofit.training.torch_api.runtime import RUNS_ON_MAIN

FORWARD = "a forward pass through DDP"
MOST_DEPTH = 8


class SharedCalls:
    """Finds out what calls run that every process must take part in: themselves, or in functions that they call."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.collectives = project.analysis.fact("calls for every rank", lambda: dict(_collectives(project)))
        self.exist = bool(self.collectives or project.wrapping.sites)
        self.of_function: dict[ast.AST, set[str]] = {}

    def names(self, call: ast.Call, scope: Scope, depth: int = MOST_DEPTH) -> set[str]:
        if call in self.collectives:
            is_of_a_part = any(keyword.arg == "group" for keyword in call.keywords)
            return set() if is_of_a_part else {self.collectives[call]}
        site = self.project.wrapping.wrapped(call.func, scope)
        if site is not None:
            is_shared = has_gradients(self.project.analysis, scope, call) or self._copies_buffers(site)
            return {FORWARD} if is_shared else set()
        found: set[str] = set()
        for function in self.project.analysis.functions_called(call, scope) if depth else []:
            found |= self._inside(function.scope, depth)
        return found

    def handed_to_main(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return what a function takes part in that is given to rd.output.on_main_process(function, ...)."""
        if not call.args or not RUNS_ON_MAIN & self.project.analysis.called(call, scope):
            return set()
        values = (value for given in call.args for value in self.project.analysis.evaluate(given, scope))
        functions = [value.scope for value in values if isinstance(value, LocalFunction)]
        return {name for function in functions for name in self._inside(function, MOST_DEPTH)}

    def _copies_buffers(self, site) -> bool:  # type: ignore[no-untyped-def]
        is_off = any(
            keyword.arg == "broadcast_buffers" and getattr(keyword.value, "value", True) is False
            for keyword in site.call.keywords
        )
        return not is_off and has_buffers(self.project.analysis, site)

    def _inside(self, scope: Scope, depth: int) -> set[str]:
        """Return what every process that calls a function takes part in there."""
        if scope.node not in self.of_function:
            self.of_function[scope.node] = set()
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Call) and not is_for_main(scope):
                    names = self.names(node, scope, depth - 1)
                    if names and not side_of(self.project.analysis, scope, node):
                        self.of_function[scope.node] |= names
        return self.of_function[scope.node]


def _collectives(project: Project) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that wait for every rank, with the name of what is called."""
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Call):
            names = sorted(EVERY_RANK & project.analysis.called(node, scope))
            if names:
                yield node, names[0].rpartition(".")[2]
