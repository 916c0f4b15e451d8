"""Frameworks that distribute a training themselves, and how a script that uses one is started."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.distributed import ADDS_UP
from retrofit.training.torch_api.frameworks import (
    NEEDED_CALLS,
    NETWORK_TRAINERS,
    SHARDING,
    TORCHRUN,
    TRAINERS,
    TRAINS,
    TRAINS_A_LEARNER,
    TRAINS_NOTHING,
)


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


def library_trainings(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope, str]]:
    """Yield the calls by which a library trains a network whole, with their names: `YOLO(path).train(data=...)`.

    Of a package that is not known, what its function or method is given has to be a model: `fit(model, loader)`.
    """
    for node, scope in reached_calls(analysis):
        names = sorted(analysis.called(node, scope))
        is_own = names and any(isinstance(value, LocalFunction) for value in analysis.evaluate(node.func, scope))
        for name in () if is_own else names:
            package, _, rest = name.partition(".")
            last = rest.rpartition(".")[2]
            if last in TRAINS_A_LEARNER or (_is_training(last) and _trains(analysis, package, node, scope)):
                yield node, scope, name
                break


def _is_training(name: str) -> bool:
    return any(name == begin or name.startswith(f"{begin}_") for begin in TRAINS)


def _trains(analysis: Analysis, package: str, call: ast.Call, scope: Scope) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if package in NETWORK_TRAINERS:
        is_mode = not call.keywords and all(isinstance(part, ast.Constant) for part in call.args)
        return last_name(call) != "train" or not is_mode  # model.train(False)
    if package in TRAINS_NOTHING:
        return False
    values = (value for part in given for value in analysis.evaluate(part, scope))
    return any(isinstance(value, Instance) and is_module(analysis, value) for value in values)


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
