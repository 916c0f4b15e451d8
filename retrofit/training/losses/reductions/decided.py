"""Branches of a function that the options of its project rule out: `if self.size_average:`, which is given True."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import CallSite, default_of, given_parameters
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.bindings import class_of_own
from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.flow.stored import sets_by_text
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope, parameters, place_of
from retrofit.analysis.values.inference import Analysis


def is_ruled_out(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a function never comes to a node, as far as literal options decide it."""
    inner = scope.source.statement(node)
    for outer in (*scope.source.ancestors(inner),):
        for earlier in block_of(scope.source, inner) if isinstance(inner, ast.stmt) else ():
            if earlier is inner:
                break
            holds = truth(analysis, earlier.test, scope) if isinstance(earlier, ast.If) else None
            if holds is not None and _leaves(earlier.body if holds else earlier.orelse):  # type: ignore[attr-defined]
                return True
        if isinstance(outer, ast.If) and inner is not outer.test:
            holds = truth(analysis, outer.test, scope)
            if holds is not None and holds is not is_in_body(outer, inner):
                return True
        if outer is scope.node or not isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def _leaves(block: list[ast.stmt]) -> bool:
    """Return whether a block never comes to its end: it returns or raises, in each of its last branches."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))


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
    found = {bool(value) for value in _literals(analysis, test, scope)}
    return found.pop() if len(found) == 1 else None


def arm_taken(analysis: Analysis, node: ast.expr | None, scope: Scope) -> ast.expr | None:
    """Return what an expression is where literal options decide it: "sum" of `"mean" if average else "sum"`."""
    while isinstance(node, (ast.IfExp, ast.Name)):
        chosen = scope.only_value(node.id) if isinstance(node, ast.Name) else node
        holds = truth(analysis, chosen.test, scope) if isinstance(chosen, ast.IfExp) else None
        if holds is None or not isinstance(chosen, ast.IfExp):
            break
        node = chosen.body if holds else chosen.orelse
    return node


def taken(bindings: list[Binding], name: ast.Name, scope: Scope, site: CallSite) -> list[Binding]:
    """Return the bindings of a name that one call of a function comes to, which may give labels or not."""
    arms = {binding: _is_in_taken_arm(binding.node, scope, site) for binding in bindings}
    alive = [binding for binding in bindings if arms[binding] is not False]
    here = place_of(scope.source.statement(name))
    sure = [binding.place for binding in alive if arms[binding] and binding.place < here]
    return [binding for binding in alive if not sure or binding.place >= max(sure)]


def _is_in_taken_arm(node: ast.AST, scope: Scope, site: CallSite) -> bool | None:
    """Return whether a call comes to a node in a test on what it gives, False if not, None where it is not known."""
    inner, found = node, []
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            break
        if isinstance(outer, ast.If) and inner is not outer.test:
            holds = _holds_by(outer.test, scope, site)
            found.append(None if holds is None else holds is is_in_body(outer, inner))
        elif not isinstance(outer, (ast.With, ast.If)):
            found.append(None)
        inner = outer
    return False if False in found else True if found and None not in found else None


def _holds_by(test: ast.expr, scope: Scope, site: CallSite) -> bool | None:
    """Return whether `parameter is not None` holds for what a call gives, None for another test."""
    is_compared = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name)
    if not isinstance(test, ast.Compare) or not is_compared or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    name, function = test.left.id, scope.node  # type: ignore[attr-defined]
    if not _is_none(test.comparators[0]) or not isinstance(function, FUNCTIONS) or name not in parameters(function):
        return None
    if any(binding.kind != "parameter" for binding in scope.bindings.get(name, [])):
        return None
    given = site.argument(given_parameters(scope), name)
    default = default_of(function, name)
    if given is None and default is None and not site.is_open:
        return None
    is_open = given is None and site.is_open  # model(**batch): with targets, where a loss is asked for
    is_none = not is_open and _is_none(given[0] if given is not None else default)
    return is_none is isinstance(test.ops[0], ast.Is)


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _literals(analysis: Analysis, node: ast.expr, scope: Scope) -> list[object]:
    """Return the literals that an option is given, nothing where one of them is something else."""
    found: list[object] = []
    for origin in origins(analysis, [Origin(node, scope)]):
        if isinstance(origin.node, ast.Constant):
            found.append(origin.node.value)
        elif _may_be_set_elsewhere(analysis, origin) or not any(sources(analysis, origin)):
            return []
    return found


def _may_be_set_elsewhere(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a value can have a source that is not seen: a module's name, another object's, one by its text."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.Name):
        owner = scope.find(node.id)
        return owner is None or owner[0].parent is None
    if not isinstance(node, ast.Attribute):
        return False
    own_class = class_of_own(node, scope)
    return own_class is None or sets_by_text(analysis, own_class)
