"""The functions that a script runs in processes of its own: what it does outside them is done once."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

from ..scopes import FUNCTIONS, Scope, own_nodes
from ..values import LocalFunction

if TYPE_CHECKING:
    from ..analysis import Analysis

STARTING = {"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"}


class Spawned:
    """What torch.multiprocessing.spawn starts in a project."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @cached_property
    def functions(self) -> set[Scope]:
        """The functions that are started, each with the rank as its first argument."""
        found: set[Scope] = set()
        for scope in self._analysis.scopes():
            for call in own_nodes(scope.node):
                if isinstance(call, ast.Call) and self._analysis.called(call, scope) & STARTING:
                    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "fn")]
                    values = [value for node in given for value in self._analysis.evaluate(node, scope)]
                    found |= {value.scope for value in values if isinstance(value, LocalFunction)}
        return found

    @cached_property
    def reached(self) -> set[Scope]:
        """The functions that the started ones run."""
        found: set[Scope] = set()
        waiting = list(self.functions)
        while waiting:
            scope = waiting.pop()
            if scope in found:
                continue
            found.add(scope)
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Call):
                    waiting += [function.scope for function in self._analysis.functions_called(node, scope)]
        return found

    def runs_once(self, scope: Scope) -> bool:
        """Return whether a function is run by the process that starts the others, and not by those."""
        return bool(self.functions) and isinstance(scope.node, FUNCTIONS) and scope not in self.reached
