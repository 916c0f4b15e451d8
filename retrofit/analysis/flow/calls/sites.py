"""Call sites of the function that a node is in, and the call sites of these."""

from __future__ import annotations

import ast

from ...calls import CallSite
from ...scopes import FUNCTIONS, Scope
from ...values.inference import Analysis
from ..sources import closure


def sites_of(analysis: Analysis, scope: Scope) -> list[CallSite]:
    """Return the calls of the function that `scope` is of; none where it is a script's or a class's."""
    return analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) else []


def call_chains(analysis: Analysis, node: ast.AST, scope: Scope) -> list[tuple[ast.AST, Scope]]:
    """Return a node, the calls of the function that it is in, the calls of the functions that these are in, and so on.

    The nearest ones come first.
    """

    def calls(place: tuple[ast.AST, Scope]) -> list[tuple[ast.AST, Scope]]:
        return [(site.call, site.scope) for site in sites_of(analysis, place[1])]

    return list(closure([(node, scope)], calls))
