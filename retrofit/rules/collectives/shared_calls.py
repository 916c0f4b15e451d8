"""Calls that every process must make: collectives, forward passes through DDP, and functions that lead to them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from retrofit.analysis.calls import CallSite
from retrofit.analysis.flow.calls.graph import with_called
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import is_for_main, side_of
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.layers import has_buffers
from retrofit.training.torch_api.distributed import EVERY_RANK
from retrofit.training.torch_api.runtime import RUNS_ON_MAIN

FORWARD = "a forward pass through DDP"


class SharedCalls:
    """Finds out what calls run that every process must take part in: themselves, or in functions that they call."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.collectives = project.analysis.fact("calls for every rank", lambda: dict(_collectives(project)))
        self.exist = bool(self.collectives or project.wrapping.sites)

    def names(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return what every process takes part in that makes a call."""
        if call in self._own:
            return self._own[call]
        functions = self.project.analysis.functions_called(call, scope)
        return set().union(*(self._of_functions.get(function.scope, ()) for function in functions))

    @cached_property
    def _own(self) -> dict[ast.Call, set[str]]:
        """The collectives and the calls of wrapped models."""
        names = ((call, self._names_of(call, scope)) for call, scope in reached_calls(self.project.analysis))
        return {call: found for call, found in names if found is not None}

    def _names_of(self, call: ast.Call, scope: Scope) -> set[str] | None:
        if call in self.collectives:
            is_of_a_part = any(keyword.arg == "group" for keyword in call.keywords)
            return set() if is_of_a_part else {self.collectives[call]}
        site = self.project.wrapping.wrapped(call.func, scope)
        if site is None:
            return None
        is_shared = has_gradients(self.project.analysis, scope, call) or self._copies_buffers(site)
        return {FORWARD} if is_shared else set()

    @cached_property
    def _of_functions(self) -> dict[Scope, set[str]]:
        """What every process that calls a function takes part in there."""
        own: dict[Scope, set[str]] = defaultdict(set)
        for node, scope in reached_calls(self.project.analysis):
            if node in self._own and self._is_for_all(CallSite(node, scope)):
                own[scope] |= self._own[node]
        return with_called(own, self._passing_sites)

    def _passing_sites(self, function: Scope) -> list[CallSite]:
        """Return the calls of a function that all processes make which call the function around them."""
        sites = sites_of(self.project.analysis, function)
        return [site for site in sites if site.call not in self._own and self._is_for_all(site)]

    def _is_for_all(self, site: CallSite) -> bool:
        return not is_for_main(site.scope) and not side_of(self.project.analysis, site.scope, site.call)

    def handed_to_main(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return what a function takes part in that is given to rd.output.on_main_process(function, ...)."""
        if not call.args or not RUNS_ON_MAIN & self.project.analysis.called(call, scope):
            return set()
        values = (value for given in call.args for value in self.project.analysis.evaluate(given, scope))
        functions = [value.scope for value in values if isinstance(value, LocalFunction)]
        return {name for function in functions for name in self._of_functions.get(function, ())}

    def _copies_buffers(self, site) -> bool:  # type: ignore[no-untyped-def]
        is_off = any(
            keyword.arg == "broadcast_buffers" and getattr(keyword.value, "value", True) is False
            for keyword in site.call.keywords
        )
        return not is_off and has_buffers(self.project.analysis, site)


def _collectives(project: Project) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that wait for every rank, with the name of what is called."""
    for node, scope in calls_named(project.analysis, EVERY_RANK):
        yield node, min(EVERY_RANK & project.analysis.called(node, scope)).rpartition(".")[2]
