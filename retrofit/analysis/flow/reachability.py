"""Reachability: the code of a project that runs when its entry script is started, as far as that can be told."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Set

from ..scopes import FUNCTIONS, Scope, own_nodes
from ..values.attribute_names import is_taken_by_text, names_taken
from ..values.inference import Analysis
from ..values.kinds import LocalClass, LocalFunction
from .main_guard import is_under_main_of_another


def reached_scopes(analysis: Analysis) -> set[Scope]:
    """Return the modules, and the functions that are called or handed on in them and in what they reach.

    A method is reached through an object that the analysis cannot see when anything reached calls its name. Where none
    of the library's `starts` is reached (a decorator makes it a command, another script calls it), these run as well.
    """
    methods: dict[str, list[Scope]] = defaultdict(list)
    for scope in analysis.scopes():
        is_method = scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef)
        if is_method and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods[scope.node.name].append(scope)
    reached: set[Scope] = set()
    _extend(analysis, reached, list(analysis.module_scopes.values()), methods)
    starts = analysis.library.starts(analysis)
    if not reached.intersection(starts):
        _extend(analysis, reached, starts, methods)
    return reached


def known_scopes(analysis: Analysis) -> set[Scope]:
    """Return `reached_scopes`, worked out once."""
    return analysis.fact("reached scopes", lambda: reached_scopes(analysis))


def _extend(analysis: Analysis, reached: set[Scope], waiting: list[Scope], methods: dict[str, list[Scope]]) -> None:
    """Add the scopes in `waiting`, and all that they reach, to `reached`."""
    while waiting:
        scope = waiting.pop()
        if scope in reached:
            continue
        reached.add(scope)
        for node in own_nodes(scope.node):
            if is_under_main_of_another(analysis, scope, node):
                continue
            waiting += [inner for inner in _referred_to(analysis, node, scope, methods) if inner not in reached]


def reached_nodes(analysis: Analysis) -> list[tuple[ast.AST, Scope]]:
    """Return every node of the code that runs, in source order, with the scope it is in."""
    return analysis.fact("reached", lambda: list(_reached_nodes(analysis)))


def _reached_nodes(analysis: Analysis) -> Iterator[tuple[ast.AST, Scope]]:
    reached = known_scopes(analysis)
    for scope in analysis.scopes():
        if scope in reached:
            for node in own_nodes(scope.node):
                if not is_under_main_of_another(analysis, scope, node):
                    yield node, scope


def reached_calls(analysis: Analysis) -> list[tuple[ast.Call, Scope]]:
    """Return every call of the code that runs, in source order, with the scope it is in."""
    nodes = reached_nodes(analysis)
    return analysis.fact("reached calls", lambda: [(n, scope) for n, scope in nodes if isinstance(n, ast.Call)])


def calls_named(analysis: Analysis, names: Set[str]) -> list[tuple[ast.Call, Scope]]:
    """Return the calls of the code that runs that can run one of these functions from outside the project, in order."""
    index: dict[str, list[int]] = analysis.fact("calls by name", lambda: _calls_by_name(analysis))
    places = {place for name in names for place in index.get(name, ())}
    calls = reached_calls(analysis)
    return [calls[place] for place in sorted(places)]


def _calls_by_name(analysis: Analysis) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place, (call, scope) in enumerate(reached_calls(analysis)):
        for name in analysis.called(call, scope):
            found[name].append(place)
    return found


def calls_within(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield a call and the calls in the functions of the project that it runs, with the scopes they are in."""
    seen: set[ast.AST] = set()
    waiting = [(call, scope)]
    while waiting:
        node, where = waiting.pop()
        yield node, where
        for function in analysis.functions_called(node, where):
            if function.node not in seen:
                seen.add(function.node)
                calls = (part for part in own_nodes(function.node) if isinstance(part, ast.Call))
                waiting += [(part, function.scope) for part in calls]


def _referred_to(analysis: Analysis, node: ast.AST, scope: Scope, methods: dict[str, list[Scope]]) -> Iterator[Scope]:
    inner = analysis.scope_of_node.get(node)
    if inner is not None and isinstance(node, ast.ClassDef):
        yield inner
    is_taken = is_taken_by_text(node)
    if is_taken or (isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)):
        assert isinstance(node, ast.expr)
        for value in analysis.evaluate(node, scope):
            if isinstance(value, LocalFunction):
                yield value.scope
            elif isinstance(value, LocalClass):
                for method in analysis.library.called_from_outside:
                    found = analysis.classes.method(value.scope, method)
                    if found is not None:
                        yield found.scope
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.Call):
            names = names_taken(analysis, node, list(methods))
        for name in names:
            yield from methods.pop(name, [])  # once is enough: all of them
    elif isinstance(node, FUNCTIONS) and isinstance(node, ast.Lambda) and inner is not None:
        yield inner
