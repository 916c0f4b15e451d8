"""The functions that a script runs in processes of its own: what they are given, and what is done outside them."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from ...calls import CallSite, argument_for, given_parameters
from ...scopes import FUNCTIONS, Scope, own_nodes
from ...values.kinds import LocalFunction

if TYPE_CHECKING:
    from ...values.inference import Analysis


class Spawned:
    """The processes that a project starts."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @cached_property
    def functions(self) -> set[Scope]:
        """The functions that are started with the number of their process, the rank, as the first argument."""
        return {function for function, sites in self._sites.items() if any(map(self._is_spawn, sites))}

    @cached_property
    def _sites(self) -> dict[Scope, list[CallSite]]:
        """The calls that start each function."""
        found: dict[Scope, list[CallSite]] = defaultdict(list)
        starting = {*self._analysis.library.starting_with_rank, *self._analysis.library.starting}
        for scope in self._analysis.scopes():
            for call in own_nodes(scope.node).of(ast.Call):
                if self._analysis.called(call, scope) & starting:
                    target = argument_for(call, ["fn"], "fn") or argument_for(call, [], "target")
                    for value in self._analysis.evaluate(target, scope):
                        if isinstance(value, LocalFunction):
                            found[value.scope].append(CallSite(call, scope))
        return found

    def starts(self, function: Scope) -> bool:
        """Return whether a function is run by a process of its own."""
        return function in self._sites

    def gives_rank(self, function: Scope, name: str) -> bool:
        """Return whether a parameter is the rank: the first one of a function that is spawned."""
        return function in self.functions and given_parameters(function)[:1] == [name]

    def given(self, function: Scope, name: str) -> tuple[ast.expr, Scope] | None:
        """Return what a new process gets for a parameter: `args=(port, options)` are those after the rank."""
        names = given_parameters(function)
        for site in self._sites.get(function, []) if name in names else []:
            is_spawn = self._is_spawn(site)
            given = argument_for(site.call, ["fn", "args"] if is_spawn else [], "args")
            index = names.index(name) - is_spawn
            if isinstance(given, (ast.Tuple, ast.List)) and 0 <= index < len(given.elts):
                return given.elts[index], site.scope
        return None

    def _is_spawn(self, site: CallSite) -> bool:
        names = self._analysis.called(site.call, site.scope)
        return not names.isdisjoint(self._analysis.library.starting_with_rank)

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
            for node in own_nodes(scope.node).of(ast.Call):
                waiting += [function.scope for function in self._analysis.functions_called(node, scope)]
        return found

    def runs_once(self, scope: Scope) -> bool:
        """Return whether a function is run by the process that starts the others, and not by those."""
        return bool(self.functions) and isinstance(scope.node, FUNCTIONS) and scope not in self.reached
