"""Variables that hold a learning rate in other functions than the one that computes it, or that keep it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.calls import given_parameters, returns_of
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.nodes import walk
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
        calls = own_nodes(scope.node).of(ast.Call)
        for function in [f for call in calls for f in analysis.functions_called(call, scope)]:
            known = names.setdefault(function.scope, set())
            for name in set(given_parameters(function.scope)) - known:
                given = arguments_for(analysis, name, function.scope)
                if given and all(isinstance(v, ast.Name) and v.id in names.get(at, ()) for v, at in given):
                    known.add(name)
                    waiting.append(function.scope)


def keeping_attributes(names: dict[Scope, set[str]]) -> Iterator[tuple[Scope, str]]:
    """Add the variables that get a rate as it is, `old = lr`; yield the attributes that do, by class: self.old = lr."""
    for scope, known in names.items():
        owner = scope.enclosing_class()
        own = _assigned(own_nodes(scope.node))
        given = _assigned(walk(owner.node)) if owner is not None else own
        read = {ast.dump(target) for target, value in given if _reads_optimizer(value)}  # as it is scaled already
        for target, value in own:
            if isinstance(value, ast.Name) and value.id in known and ast.dump(target) not in read:
                known |= {target.id} if isinstance(target, ast.Name) else set()
                yield from [(owner, of_self(target))] if owner is not None and of_self(target) else []


def _assigned(nodes: Iterable[ast.AST]) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of assignments, each with the value that it gets."""
    return [(target, node.value) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]


def _reads_optimizer(value: ast.expr) -> bool:
    """Return whether a rate is read from an optimizer or a scheduler: group["lr"], scheduler.get_last_lr()."""
    parts = list(walk(value))
    is_entry = any(isinstance(part, ast.Subscript) and getattr(part.slice, "value", "") == "lr" for part in parts)
    return is_entry or any(isinstance(part, ast.Attribute) and part.attr in ("get_lr", "get_last_lr") for part in parts)


def of_self(node: ast.AST) -> str:
    """Return `old` of self.old, "" for another expression."""
    return node.attr if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self" else ""
