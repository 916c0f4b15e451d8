"""Code that a program may come to its main work without: branches, alternatives that are chosen, what these call."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..edits import block_of
from ..files.source import Source
from ..scopes import FUNCTIONS, Scope
from ..values.inference import Analysis
from .branches import is_in_body
from .calls.graph import nodes_in
from .calls.sites import sites_of
from .reachability import objects_made

Ways = Collection[Collection[ast.AST]]  # the nodes on each way to the main work: calls, and the work itself


def is_optional(analysis: Analysis, node: ast.AST, scope: Scope, ways: Ways) -> bool:
    """Return whether the program can come to its main work without `node`, as far as that can be told.

    It can where the node is in a branch that one of the ways does not take, after a statement that may return before
    it, or in a function that runs only at such places or is one of several that a call chooses from.
    """
    return _is_optional(analysis, node, scope, ways, frozenset())


def _is_optional(analysis: Analysis, node: ast.AST, scope: Scope, ways: Ways, seen: frozenset[Scope]) -> bool:
    if scope in seen:
        return True  # a recursion comes here by another call
    if _is_in_branch(scope, node, ways):
        return True
    places = _places_run(analysis, scope)
    if not places or all(any(_is_within(scope, part) for part in way) for way in ways):
        return False
    further = seen | {scope}
    return all(_is_choice(analysis, *p) or _is_optional(analysis, *p, ways, further) for p in places)


def _is_in_branch(scope: Scope, node: ast.AST, ways: Ways) -> bool:
    """Return whether a node is in a branch of its function that not all ways take."""
    source, inner = scope.source, node
    is_on_way = all(any(_is_within(scope, part) for part in way) for way in ways)
    for outer in source.ancestors(node):
        branch = _branch(source, outer, inner)
        if branch and not all(any(_is_inside(source, part, branch) for part in way) for way in ways):
            return True
        if isinstance(inner, ast.stmt) and not is_on_way and _may_return_before(source, inner):
            return True
        if outer is scope.node:
            return False
        inner = outer
    return False


def _branch(source: Source, outer: ast.AST, inner: ast.AST) -> list[ast.AST]:
    """Return the parts of `outer` that are done on one condition, `inner` among them; nothing where that is not so."""
    if isinstance(outer, ast.If) and inner is not outer.test:
        return list(block_of(source, inner)) if isinstance(inner, ast.stmt) else []
    if isinstance(outer, ast.IfExp) and inner is not outer.test:
        return [outer.body if is_in_body(outer, inner) else outer.orelse]
    if isinstance(outer, ast.BoolOp) and inner is not outer.values[0]:
        return [inner]
    if isinstance(outer, ast.ExceptHandler) or type(outer).__name__ == "match_case":  # which Python 3.9 has not
        return list(outer.body) if inner in outer.body else []  # type: ignore[attr-defined]
    return []


def _may_return_before(source: Source, statement: ast.stmt) -> bool:
    """Return whether an earlier statement of a block may end its function: `if name == "sgd": return SGD(...)`."""
    block = block_of(source, statement)
    earlier = block[: block.index(statement)]
    tests = [one for one in earlier if isinstance(one, (ast.If, ast.Try)) or type(one).__name__ == "Match"]
    return any(isinstance(part, ast.Return) for test in tests for part in nodes_in(test))


def _is_within(scope: Scope, part: ast.AST) -> bool:
    """Return whether a node is in the function of a scope, or in a function that is defined there."""
    return part in scope.source.parents and (part is scope.node or scope.node in scope.source.ancestors(part))


def _is_inside(source: Source, part: ast.AST, branch: Collection[ast.AST]) -> bool:
    return part in branch or (part in source.parents and any(outer in branch for outer in source.ancestors(part)))


def _places_run(analysis: Analysis, scope: Scope) -> list[tuple[ast.AST, Scope]]:
    """Return the calls by which a function runs; of a method the calls that make its objects; else nothing."""
    if not isinstance(scope.node, FUNCTIONS):
        return []
    of_class = scope.parent if scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef) else None
    if of_class is None:
        return [(site.call, site.scope) for site in sites_of(analysis, scope)]
    return [*objects_made(analysis).get(of_class, [])]


def _is_choice(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a call runs one of several functions or classes, by what is chosen when it runs."""
    return isinstance(node, ast.Call) and len(analysis.evaluate(node.func, scope)) > 1
