"""The operands and origins that a value is computed from, through a whole project."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..calls import last_name
from ..nodes import children, walk
from ..scopes import Scope
from ..values.inference import Analysis
from .bindings import bindings_of
from .keys import Key, Keys, has_no_entry
from .reaching_definitions import live_bindings
from .sources import Origin, closure, entries, functions_run, is_followed, sources, yielded
from .stored import stored_in

UNKNOWN_ENTRIES = ((None,), (Key.ELEMENT,))  # of what a call gives: computed from its arguments for arrays only


def computed_from(
    analysis: Analysis, node: ast.expr, scope: Scope, stored: bool = False, keys: Keys = ()
) -> Iterator[Origin]:
    """Yield an expression, or its entry at `keys`, and all expressions that it is computed from, nearest first.

    `stored`: also everything that was put into the containers among them, and what generators give.
    """
    return through_calls(analysis, Origin(node, scope, keys), lambda origin: inputs(analysis, origin, stored))


class Called(NamedTuple):
    """The call by which a search came into a function, None once all that the call is given is searched as well."""

    function: Scope
    call: ast.Call | None


def through_calls(analysis: Analysis, start: Origin, step: Callable[[Origin], Iterable[Origin]]) -> Iterator[Origin]:
    """Yield all that steps lead to from an expression, each once and what is near first.

    What a call gives is computed from what that call is given, not from what other calls give the same function.
    """

    def step_in(place: tuple[Origin, Called | None]) -> Iterator[tuple[Origin, Called | None]]:
        origin, called = place
        if has_no_entry(origin.node, origin.keys):
            return
        is_given = called is not None and _is_parameter(origin, called.function)
        others = _given_by_others(analysis, called) if is_given else frozenset()  # type: ignore[arg-type]
        for found in step(origin):
            if found.node not in others:
                yield found, None if is_given else _called(analysis, origin, found, called)

    seen: set[Origin] = set()
    first: list[tuple[Origin, Called | None]] = [(start, None)]
    for origin, _ in closure(first, step_in):
        if origin not in seen:
            seen.add(origin)
            yield origin


def _is_parameter(origin: Origin, function: Scope) -> bool:
    """Return whether an expression is a parameter of a function, and nothing else."""
    if not isinstance(origin.node, ast.Name) or not is_followed(origin.node):
        return False
    owner, bindings = live_bindings(origin.node, origin.scope)
    return owner is function and {binding.kind for binding in bindings} == {"parameter"}


def _given_by_others(analysis: Analysis, called: Called) -> frozenset[ast.AST]:
    """Return what a function is given by the calls that a search did not come from."""
    known: dict[Called, frozenset[ast.AST]] = analysis.fact("given by other calls", dict)
    if called not in known:
        calls = {site.call for site in analysis.callers(called.function.node)}  # type: ignore[arg-type]
        own = walk(called.call) if called.call is not None else ()
        known[called] = frozenset(part for call in calls for part in walk(call)).difference(own)
    return known[called]


def _called(analysis: Analysis, origin: Origin, found: Origin, called: Called | None) -> Called | None:
    """Return the call in which something is found that an expression is computed from."""
    node, scope = origin.node, origin.scope
    if found.scope is scope:
        return called
    if isinstance(node, ast.Call) and any(f.scope is found.scope for f in functions_run(analysis, node, scope)):
        return Called(found.scope, node if origin.keys[:1] in UNKNOWN_ENTRIES else None)
    return called if called is not None and called.function.is_around(found.scope) else None


def inputs(analysis: Analysis, origin: Origin, stored: bool = False) -> tuple[Origin, ...]:
    """Return what an expression is computed from, one step before.

    An element of what a call gives is not computed from the arguments: a number of a range, a batch of a loader; but
    for arrays, and their parts.
    """
    known: dict[tuple[Origin, bool], tuple[Origin, ...]] = analysis.fact("inputs", dict)
    if (origin, stored) not in known:
        known[origin, stored] = tuple(_inputs(analysis, origin, stored))
    return known[origin, stored]


def _inputs(analysis: Analysis, origin: Origin, stored: bool) -> Iterator[Origin]:
    node, scope = origin.node, origin.scope
    for source in sources(analysis, origin):
        yield from _branches(source)
    if isinstance(node, ast.Lambda):
        yield Origin(node.body, analysis.scope_of_node[node])
    elif _is_known_entry(origin):
        pass  # of (x, y) one of both is not computed from the other
    elif origin.keys[:1] not in UNKNOWN_ENTRIES or _is_array(analysis, node):
        yield from (origin.to(part, keys=()) for part in operands(node))
    for item in stored_in(analysis, node, scope) if stored else ():  # type: ignore[arg-type]
        yield Origin(item.value, item.scope)
    if stored and isinstance(node, ast.Call) and not origin.keys:
        for function in functions_run(analysis, node, scope):
            yield from yielded(function.scope)


def _is_known_entry(origin: Origin) -> bool:
    """Return whether an entry of a display is asked for by a key that is written down."""
    is_display = isinstance(origin.node, (ast.Tuple, ast.List, ast.Dict))
    return is_display and bool(origin.keys) and isinstance(origin.keys[0], (int, str)) and any(entries(origin))


def _is_array(analysis: Analysis, node: ast.AST) -> bool:
    """Return whether a call gives an array, or its parts, each computed from its arguments: `x.chunk(2)`."""
    return isinstance(node, ast.Call) and last_name(node) in analysis.library.array_functions


def _branches(origin: Origin) -> Iterator[Origin]:
    """Yield the two values that a variable is set to by `x = a if test else b`: it is not computed from the test."""
    if isinstance(origin.node, ast.IfExp):
        for part in (origin.node.body, origin.node.orelse):
            yield from _branches(origin.to(part))
    else:
        yield origin


def operands(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that are evaluated for an expression, or for `x += y`, without those inside of them."""
    for part in children(node):
        if isinstance(part, ast.expr):
            yield part
        elif isinstance(part, (ast.keyword, ast.comprehension)):
            yield from operands(part)


def is_loop_variable(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a name, or an attribute, is what a loop or a comprehension goes through."""
    return any(binding.kind == "item" for binding, _ in bindings_of(analysis, node, scope))
