"""Frameworks that distribute a training themselves, and how a script that uses one is started."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.distributed import ADDS_UP
from retrofit.training.torch_api.frameworks import NEEDED_CALLS, SHARDING, TORCHRUN, TRAINERS


@dataclass(frozen=True)
class Framework:
    """A framework that runs a training on several processes: `owns_all` of it, or its gradients alone."""

    name: str
    start: str  # a command, with {script}
    call: ast.Call
    scope: Scope
    owns_all: bool

    def advice(self, script: str) -> str:
        return f"it is distributed already by {self.name}: start it with `{self.start.format(script=script)}`"


def find_framework(analysis: Analysis) -> Framework | None:
    """Return the framework whose calls the code that runs makes; importing one is nothing yet."""
    return analysis.fact("framework", lambda: _find_framework(analysis))


def averages_gradients(analysis: Analysis, in_batches: list[tuple[ast.AST, Scope]], models: Collection[Scope]) -> bool:
    """Return whether a function that runs for every batch adds up gradients over all processes by hand.

    The gradients may be collected before: `flat = torch.cat([p.grad.view(-1) for p in parameters])`. A module that is
    none of the trained `models` has those of its own parameters alone.
    """
    for node, scope in in_batches:
        owner = scope.enclosing_class()
        if owner is not None and owner not in models and is_module(analysis, Instance(owner)):
            continue
        if isinstance(node, ast.Call) and analysis.called(node, scope) & ADDS_UP:
            parts = own_nodes(scope.node)
            if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
                return True
    return False


def _find_framework(analysis: Analysis) -> Framework | None:
    methods = {
        node.func.attr for node, _ in reached_calls(analysis) if isinstance(node.func, ast.Attribute) and node.args
    }
    found = None
    for node, scope in calls_named(analysis, TRAINERS.keys() | SHARDING.keys()):
        for name in sorted(analysis.called(node, scope)):
            if name in TRAINERS:
                framework, start = TRAINERS[name]
                needed = NEEDED_CALLS.get(framework)
                if needed is None or methods & needed:
                    return Framework(framework, start, node, scope, owns_all=True)
            elif name in SHARDING and found is None:
                found = Framework(SHARDING[name], TORCHRUN, node, scope, owns_all=False)
    return found
