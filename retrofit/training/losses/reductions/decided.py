"""Branches of a function that the options of its project rule out: `if self.size_average:`, which is given True."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import default_of
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.bindings import arguments_or_default, class_of_own
from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis


def is_ruled_out(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a function never comes to a node, as far as literal options decide it."""
    inner = scope.source.statement(node)
    for outer in (*scope.source.ancestors(inner),):
        for earlier in block_of(scope.source, inner) if isinstance(inner, ast.stmt) else ():
            if earlier is inner:
                break
            ends = isinstance(earlier, ast.If) and isinstance(earlier.body[-1], (ast.Return, ast.Raise))
            if ends and truth(analysis, earlier.test, scope):  # type: ignore[attr-defined]
                return True
        if isinstance(outer, ast.If) and inner is not outer.test:
            holds = truth(analysis, outer.test, scope)
            if holds is not None and holds is not is_in_body(outer, inner):
                return True
        if outer is scope.node or not isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def truth(analysis: Analysis, test: ast.expr, scope: Scope) -> bool | None:
    """Return whether a test on an option holds, None where that is not written down or differs."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(analysis, test.operand, scope)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        known = _literals(analysis, test.left, scope)
        if not known or not isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
            return None
        wanted = isinstance(test.ops[0], (ast.Eq, ast.Is))
        found = {(value == test.comparators[0].value) is wanted for value in known}
        return found.pop() if len(found) == 1 else None
    found = {bool(value) for value in _literals(analysis, test, scope) or ()}
    return found.pop() if len(found) == 1 else None


def _literals(analysis: Analysis, node: ast.expr, scope: Scope) -> list[object] | None:
    """Return the literals that an option is given, None where one of them is something else."""
    places = [(node, scope)]
    owner = class_of_own(node, scope)
    if isinstance(node, ast.Attribute) and owner is not None:
        bindings = analysis.classes.attribute_bindings(owner, node.attr)
        parts = [(part_of(binding), where) for binding, where in bindings]
        places = [(part, where) for part, where in parts if part is not None]
        if not places or len(places) < len(parts):
            return None
    found: list[object] = []
    for part, where in places:
        given = _given(analysis, part, where) if isinstance(part, ast.Name) else [part]
        if not given or not all(isinstance(value, ast.Constant) for value in given):
            return None
        found += [value.value for value in given if isinstance(value, ast.Constant)]
    return found


def _given(analysis: Analysis, name: ast.Name, scope: Scope) -> list[ast.expr | None]:
    """Return what calls give for a parameter, or its default."""
    bindings = scope.bindings.get(name.id, [])
    if [binding.kind for binding in bindings] != ["parameter"] or not isinstance(scope.node, FUNCTIONS):
        return []
    sites = analysis.callers(scope.node)
    if any(keyword.arg is None for site in sites for keyword in site.call.keywords):
        return []
    given = [value for value, _ in arguments_or_default(analysis, name.id, scope)]
    return given or [default_of(scope.node, name.id)]
