"""The call graph: functions that calls run, and calls on the paths to a place."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from ...calls import CallSite
from ...nodes import children
from ...scopes import FUNCTIONS, Scope, own_calls, own_nodes
from ...values.inference import Analysis
from ...values.kinds import LocalFunction
from .sites import sites_of

T = TypeVar("T")
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
CallPlace = tuple[ast.Call, Scope]
Test = Callable[[ast.AST, Scope], bool]


def calls_in(function: LocalFunction) -> list[CallPlace]:
    """Return the calls that a function makes itself."""
    return [(node, function.scope) for node in own_calls(function.node)]


def functions_reached(
    analysis: Analysis,
    calls: Iterable[CallPlace],
    called: Callable[[ast.Call, Scope], Iterable[LocalFunction]] | None = None,
) -> Iterator[LocalFunction]:
    """Yield each function of the project that calls run, directly or through others; the nearest ones come first.

    `called`: the functions that one call runs, if not `Analysis.functions_called`.
    """
    called = called or analysis.functions_called
    seen: set[ast.AST] = set()
    waiting = deque(calls)
    while waiting:
        for function in called(*waiting.popleft()):
            if function.node not in seen:
                seen.add(function.node)
                yield function
                waiting += calls_in(function)


def nodes_run(
    analysis: Analysis, roots: Iterable[tuple[ast.AST, Scope]], without: Collection[ast.AST] = ()
) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield the nodes of statements and expressions, and of the functions of the project that they run, each once.

    But for those in `without`, and for what only these call.
    """

    def called(call: ast.Call, scope: Scope) -> list[LocalFunction]:
        return analysis.functions_called(call, scope) if call not in without else []

    own = {node: scope for root, scope in roots for node in nodes_in(root) if node not in without}
    yield from own.items()
    calls = [(node, scope) for node, scope in own.items() if isinstance(node, ast.Call)]
    for function in functions_reached(analysis, calls, called):
        nodes = (node for node in own_nodes(function.node) if node not in own and node not in without)
        yield from ((node, function.scope) for node in nodes)


def nodes_in(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, in source order, without what is inside functions and classes defined in it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, DEFINITIONS):
            waiting += reversed(children(node))


def with_called(
    own: Mapping[Scope, Collection[T]], sites: Callable[[Scope], Iterable[CallSite]]
) -> dict[Scope, set[T]]:
    """Return what functions have, themselves or in functions that they call, from what each has itself.

    `sites`: the calls of a function, as `sites_of`.
    """
    found = {scope: set(values) for scope, values in own.items()}
    waiting = deque(found)
    while waiting:
        scope = waiting.popleft()
        for site in sites(scope):
            values = found.setdefault(site.scope, set())
            if not values >= found[scope]:
                values |= found[scope]
                waiting.append(site.scope)
    return found


def nearest_on_paths(
    analysis: Analysis, node: ast.AST, scope: Scope, holds: Test, counts: Callable[[CallSite], bool] | None = None
) -> list[tuple[ast.AST, Scope] | None]:
    """Return the nearest place on each call path to a node where `holds`; None for a path without one.

    A path leads from the node to a call of its function, to a call of the function around that one, and so on.
    `counts`: which calls there are, if not all.
    """
    found: list[tuple[ast.AST, Scope] | None] = []
    seen: set[Scope] = set()
    waiting = deque([(node, scope)])
    while waiting:
        place, where = waiting.popleft()
        if holds(place, where):
            found.append((place, where))
        elif where not in seen:
            seen.add(where)
            sites = [site for site in sites_of(analysis, where) if counts is None or counts(site)]
            waiting += [(site.call, site.scope) for site in sites]
            found += [] if sites else [None]
    return found


def holds_on_every_path(
    analysis: Analysis, node: ast.AST, scope: Scope, holds: Test, counts: Callable[[CallSite], bool] | None = None
) -> bool:
    """Return whether every call path to a node has a place where `holds`; the arguments are `nearest_on_paths`'."""
    places = nearest_on_paths(analysis, node, scope, holds, counts)
    return bool(places) and None not in places
