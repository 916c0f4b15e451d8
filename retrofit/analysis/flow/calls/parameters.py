"""Values that functions are given for their parameters; functions that are also called where that cannot be seen."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from ...calls import CallSite, default_of, given_parameters
from ...scopes import FUNCTIONS, Function, Scope, own_nodes
from ...values.inference import Analysis
from ...values.kinds import Instance, LocalClass, LocalFunction, Result, Value
from ..keys import Key, Keys, may_be

Given = tuple[ast.expr, Scope, Keys]  # of which entry it is the value; see `Origin`


def given_for(
    analysis: Analysis, name: str, scope: Scope, keys: Keys, calls: Collection[ast.AST] | None = None
) -> Iterator[Given]:
    """Yield what calls, and starts of processes, give for a parameter, and its default where one gives nothing.

    Only what `calls` give, if there are such.
    """
    function = scope.node
    assert isinstance(function, FUNCTIONS)
    names = given_parameters(scope)
    sites = [site for site in analysis.callers(function) if calls is None or site.call in calls]
    if name not in names:
        yield from (found for site in sites if keys for found in _of_rest(site, name, scope, keys))
        return
    given = [site.argument(names, name) or _after_spread(site, function, names, name) for site in sites]
    yield from ((*place, keys) for place in given if place is not None)
    for site in (site for site, place in zip(sites, given) if place is None):
        yield from _of_spread(site, names, name, keys)
    started = analysis.spawned.given(scope, name) if calls is None else None
    yield from [(*started, keys)] if started is not None else []
    default = default_of(function, name)
    if default is not None and (None in given or (calls is None and has_unknown_caller(analysis, scope))):
        yield default, scope.parent or scope, keys


def _after_spread(site: CallSite, function: Function, names: list[str], name: str) -> tuple[ast.expr, Scope] | None:
    """Return what a call gives after `*values` for a parameter of a function that is given all of them by place."""
    given, parameters = site.positional, function.args
    spread = [number for number, (part, _) in enumerate(given) if isinstance(part, ast.Starred)]
    place = names.index(name) - len(names) + len(given)
    is_open = parameters.vararg or parameters.kwonlyargs or parameters.defaults or site.keywords
    return given[place] if len(spread) == 1 and not is_open and place > spread[0] else None


def _of_spread(site: CallSite, names: list[str], name: str, keys: Keys) -> Iterator[Given]:
    """Yield what `*values` and `**values` in a call give for a parameter: one of the entries, or any of them."""
    entry = site.spread_for(names, name)
    if entry is not None:
        values, key, where = entry
        yield values, where, (key, *keys)
        return
    yield from ((part.value, where, (name, *keys)) for part, where in site.keywords if part.arg is None)
    spread = [(part.value, where) for part, where in site.positional if isinstance(part, ast.Starred)]
    yield from ((*place, (Key.ELEMENT, *keys)) for place in spread)


def _of_rest(site: CallSite, name: str, scope: Scope, keys: Keys) -> Iterator[Given]:
    """Yield the entries of `*arguments`, or of `**options`, that a call gives."""
    parameters = scope.node.args  # type: ignore[union-attr]
    key, rest = keys[0], keys[1:]
    if parameters.vararg is not None and name == parameters.vararg.arg:
        given = site.positional[len(given_parameters(scope)) - len(parameters.kwonlyargs) :]
        is_index = isinstance(key, int) and not any(isinstance(part, ast.Starred) for part, _ in site.positional)
        for part, where in given[key:][:1] if is_index else given:  # type: ignore[index]
            is_spread = isinstance(part, ast.Starred)
            yield (part.value, where, (Key.ELEMENT, *rest)) if is_spread else (part, where, rest)  # type: ignore[attr-defined]
    elif parameters.kwarg is not None and name == parameters.kwarg.arg:
        for keyword, where in site.keywords:
            if keyword.arg is None or (key is not Key.ELEMENT and may_be(keyword.arg, key)):
                yield keyword.value, where, rest if keyword.arg else keys


def is_rest(name: str, scope: Scope) -> bool:
    """Return whether a name is the parameter of a function that holds all other arguments: `*inputs`, `**options`."""
    rest = (scope.node.args.vararg, scope.node.args.kwarg) if isinstance(scope.node, FUNCTIONS) else ()
    return any(parameter is not None and parameter.arg == name for parameter in rest)


def has_unknown_caller(analysis: Analysis, scope: Scope) -> bool:
    """Return whether a function is called where that cannot be seen: no call of it is, or a library is handed it."""
    function = scope.node
    assert isinstance(function, FUNCTIONS)
    if not analysis.callers(function):
        return not analysis.spawned.starts(scope)
    handed_on: set[Function] = analysis.fact("handed on", lambda: set(_handed_on(analysis)))
    return function in handed_on


def _handed_on(analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that are given to functions of libraries: map(function, values), Thread(target=function)."""
    library = analysis.library
    followed = {"functools.partial", *library.starting, *library.starting_with_rank, *library.same_functions}
    for scope in analysis.scopes():
        for call in own_nodes(scope.node).of(ast.Call):
            if not _is_followed(analysis, call, scope, followed):
                given = (*call.args, *(keyword.value for keyword in call.keywords))
                values = (value for part in given for value in analysis.evaluate(part, scope) if _is_function(value))
                yield from (function.node for value in values for function, _ in analysis.functions_of(value))


def _is_followed(analysis: Analysis, call: ast.Call, scope: Scope, followed: set[str]) -> bool:
    """Return whether a call runs code of the project, or one of the functions by which others are followed."""
    if analysis.called(call, scope) & followed:
        return True
    return any(isinstance(v, (LocalFunction, LocalClass, Instance)) for v in analysis.evaluate(call.func, scope))


def _is_function(value: Value) -> bool:
    return isinstance(value, LocalFunction) or (isinstance(value, Result) and value.is_partial)
