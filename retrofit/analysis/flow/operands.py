"""The operands and origins that a value is computed from, through a whole project."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls import last_name
from ..nodes import children
from ..scopes import Scope
from ..values.inference import Analysis
from .bindings import bindings_of
from .keys import Key
from .sources import Origin, functions_run, origins, sources, yielded
from .stored import stored_in


def computed_from(analysis: Analysis, node: ast.expr, scope: Scope, stored: bool = False) -> Iterator[Origin]:
    """Yield an expression and all expressions that it is computed from, nearest first.

    `stored`: also everything that was put into the containers among them, and what generators give.
    """
    return origins(analysis, [Origin(node, scope)], lambda origin: inputs(analysis, origin, stored))


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
    elif origin.keys[:1] not in ((None,), (Key.ELEMENT,)) or _is_array(analysis, node):
        yield from (origin.to(part, keys=()) for part in operands(node))
    for item in stored_in(analysis, node, scope) if stored else ():  # type: ignore[arg-type]
        yield Origin(item.value, item.scope)
    if stored and isinstance(node, ast.Call) and not origin.keys:
        for function in functions_run(analysis, node, scope):
            yield from yielded(function.scope)


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
