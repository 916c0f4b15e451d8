"""Variables that hold a learning rate in other functions than the one that computes it."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import given_parameters, returns_of
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis


def add_elsewhere(analysis: Analysis, names: dict[Scope, set[str]]) -> None:
    """Add what functions return of the variables in `names`, and hand on: to `lr` of def log(lr, epoch)."""
    _add_returned(analysis, names)
    _add_given(analysis, names)


def _add_returned(analysis: Analysis, names: dict[Scope, set[str]]) -> None:
    """Add the variables of other functions that hold a rate: `lr = adjust_rate(optimizer, epoch)`."""
    returning = {
        scope.node
        for scope, known in names.items()
        if isinstance(scope.node, FUNCTIONS) and any(getattr(v, "id", "") in known for v in returns_of(scope.node))
    }
    for scope in analysis.scopes() if returning else ():
        for name, bindings in scope.bindings.items():
            calls = [b.value for b in bindings if isinstance(b.value, ast.Call) and not b.path]
            functions = [f for call in calls for f in analysis.functions_called(call, scope)]
            if calls and len(calls) == len(bindings) and any(function.node in returning for function in functions):
                names.setdefault(scope, set()).add(name)


def _add_given(analysis: Analysis, names: dict[Scope, set[str]]) -> None:
    """Add the parameters for which every call gives such a variable."""
    waiting = list(names)
    while waiting:
        scope = waiting.pop()
        calls = (node for node in own_nodes(scope.node) if isinstance(node, ast.Call))
        for function in [f for call in calls for f in analysis.functions_called(call, scope)]:
            known = names.setdefault(function.scope, set())
            for name in set(given_parameters(function.scope)) - known:
                given = arguments_for(analysis, name, function.scope)
                if given and all(isinstance(v, ast.Name) and v.id in names.get(at, ()) for v, at in given):
                    known.add(name)
                    waiting.append(function.scope)
