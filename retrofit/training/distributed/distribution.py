"""Calls that distribute a project already: groups joined, models wrapped, samplers, collectives."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from retrofit.analysis.calls import CallSite
from retrofit.analysis.files.runtime_names import RUNTIME
from retrofit.analysis.flow.calls.graph import with_called
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalClass, LocalFunction
from retrofit.training.torch_api.data import SHARDING_SAMPLERS
from retrofit.training.torch_api.distributed import COLLECTIVES, JOINS_GROUP, WITHOUT_SAMPLES
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS


@dataclass(frozen=True)
class Site:
    """A call in the code that runs, the scope it is in, and the full names of what it calls."""

    call: ast.Call
    scope: Scope
    names: frozenset[str]


@dataclass(frozen=True)
class Distribution:
    """The calls with which a project distributes itself."""

    joins: list[Site] = field(default_factory=list)  # of a process group
    wraps: list[Site] = field(default_factory=list)  # of a model in DDP
    samplers: list[Site] = field(default_factory=list)  # DistributedSampler(...)
    collectives: list[Site] = field(default_factory=list)

    @property
    def is_by_hand(self) -> bool:
        """Whether the project distributes itself with torch's own calls instead of the runtime's."""
        own = (site for site in (*self.joins, *self.wraps, *self.samplers))
        return any(not name.startswith(f"{RUNTIME}.") for site in own for name in site.names)

    @property
    def uses_runtime(self) -> bool:
        """Whether the runtime is, or could be, what distributes the project: nothing else does so alone."""
        own = [name for site in (*self.joins, *self.wraps, *self.samplers) for name in site.names]
        return not own or any(name.startswith(f"{RUNTIME}.") for name in own)


def find_distribution(analysis: Analysis) -> Distribution:
    """Return what the code that runs does already for several processes."""
    found = Distribution()
    kinds = ((JOINS_GROUP, found.joins), (AVERAGING_WRAPPERS, found.wraps), (SHARDING_SAMPLERS, found.samplers))
    names = frozenset().union(COLLECTIVES, *(wanted for wanted, _ in kinds))
    for call, scope in calls_named(analysis, names):
        site = Site(call, scope, frozenset(analysis.called(call, scope)))
        for wanted, sites in (*kinds, (COLLECTIVES, found.collectives)):
            if site.names & wanted:
                sites.append(site)
    return found


def leads_to_collective(analysis: Analysis, distribution: Distribution, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call is one of torch.distributed or of the runtime, or runs a function that makes one."""
    return _leads_to(analysis, call, scope, "collectives", distribution.collectives)


def leads_to_samples(analysis: Analysis, distribution: Distribution, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call brings together what all ranks have computed from their samples, not rank 0's alone."""
    found = [site for site in distribution.collectives if not site.names & WITHOUT_SAMPLES]
    return _leads_to(analysis, call, scope, "collectives of samples", found)


def _leads_to(analysis: Analysis, call: ast.Call, scope: Scope, fact: str, collectives: list[Site]) -> bool:
    calls, functions = analysis.fact(fact, lambda: _with_collectives(analysis, collectives))
    run = (*analysis.functions_called(call, scope), *_applied(analysis, call, scope))
    return call in calls or any(function.scope in functions for function in run)


def _with_collectives(analysis: Analysis, collectives: list[Site]) -> tuple[set[ast.Call], set[Scope]]:
    """Return the collectives, and the functions that run one, themselves or in others."""
    applying: dict[Scope, list[CallSite]] = defaultdict(list)
    for node, scope in reached_calls(analysis):
        for function in _applied(analysis, node, scope):
            applying[function.scope].append(CallSite(node, scope))
    own = {site.scope: {"collective"} for site in collectives}
    functions = with_called(own, lambda scope: [*sites_of(analysis, scope), *applying[scope]])
    return {site.call for site in collectives}, set(functions)


def _applied(analysis: Analysis, call: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the forward pass that `Gather.apply(x)` runs, of a torch.autograd.Function."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "apply":
        return []
    values = analysis.evaluate(call.func.value, scope)
    methods = (analysis.classes.method(value.scope, "forward") for value in values if isinstance(value, LocalClass))
    return [method for method in methods if method]
