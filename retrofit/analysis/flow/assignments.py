"""Statements that give a variable its object, or change what it holds; where an object comes from; its other names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..memory import answered_once
from ..nodes import walk
from ..scopes import Binding, Scope, outside_comprehensions, own_nodes
from ..values.inference import Analysis
from ..values.kinds import LocalClass, LocalFunction
from .calls.returned import returned
from .reachability import known_scopes
from .sources import Origin, is_followed, sources
from .variables import Variable, is_plain, part_of, variables_of


@dataclass(frozen=True)
class Assignment:
    """A statement that gives a variable a value, or changes what it holds in place, and the scope it is in."""

    statement: ast.stmt
    scope: Scope
    value: ast.expr | None = None
    only_fills: bool = False  # the object stays where it is and what it is, with other content
    in_place: bool = False  # it changes the object, which the variable holds before and after


def first_alias(analysis: Analysis, variable: Variable, scope: Scope) -> float:
    """Return the line in `scope` where the object gets another name or an owner, infinity where it does not."""
    lines = []
    given = {a.statement for a in assignments_to(analysis, variable)}
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
            held = [value for value in values if is_plain(value)]
            held += [part for value in values if node not in given for part in _held_by(analysis, value, scope)]
            if isinstance(node.value, ast.Dict):
                held += node.value.values
        elif isinstance(node, ast.Call) and any(
            isinstance(value, LocalClass) for value in analysis.evaluate(node.func, scope)
        ):
            held = [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            continue
        if any(is_plain(value) and variable in variables_of(analysis, value, scope) for value in held):
            lines.append(node.lineno)
    return min(lines, default=float("inf"))


@answered_once
def upstream(analysis: Analysis, variable: Variable) -> frozenset[Variable]:
    """Return the variables that what is in `variable` came from: `model` of `self.model = Wrapper(model).to(place)`.

    And in functions that return it: `net` of `model, optimizer = build()`, where build returns `net, sgd`.
    """
    found: set[Variable] = set()
    waiting = [variable]
    while waiting:
        current = waiting.pop()
        handed_over = [(b, _handed_over(analysis, b, scope)) for b, scope in _bindings(analysis, current)]
        entries = {b.value for b, parts in handed_over if parts and isinstance(b.value, ast.Subscript)}
        given = [(a.value, a.scope) for a in assignments_to(analysis, current) if a.value not in entries]
        given += [part for _, parts in handed_over for part in parts]
        given += [(name, a.scope) for a in assignments_to(analysis, current) for name in other_targets(a.statement)]
        for value, scope in given:
            for part in _held_by(analysis, value, scope):
                for inner in variables_of(analysis, part, scope):
                    if inner not in found and inner != variable:
                        found.add(inner)
                        waiting.append(inner)
    return frozenset(found)


def comes_from(analysis: Analysis, variable: Variable, others: Iterable[Variable]) -> bool:
    """Return whether each object that a variable gets is that of one of some others, or made of what it holds."""
    known = {variable, *others}
    for given in assignments_to(analysis, variable):
        if given.value is None or given.in_place or isinstance(given.value, ast.Constant):
            continue
        parts = [(part, given.scope) for part in _held_by(analysis, given.value, given.scope)]
        parts += [(part, given.scope) for part in walk(given.value) if isinstance(part, ast.expr) and is_plain(part)]
        parts += [(other, given.scope) for other in other_targets(given.statement)]
        bindings = [pair for pair in _bindings(analysis, variable) if part_of(pair[0]) is given.value]
        parts += [part for pair in bindings for part in _handed_over(analysis, *pair)]
        inner = {one for part, scope in parts for one in variables_of(analysis, part, scope)}
        if known.isdisjoint(inner.union(*(upstream(analysis, one) for one in inner))):
            return False
    return True


def other_targets(statement: ast.stmt) -> list[ast.expr]:
    """Return the names that a statement gives one new object: a and b of a = b = Net()."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) < 2 or not isinstance(statement.value, ast.Call):
        return []
    return [target for target in statement.targets if isinstance(target, (ast.Name, ast.Attribute))]


def keeps_object(analysis: Analysis, variable: Variable, given: Assignment) -> bool:
    """Return whether a statement gives a variable the object that it holds: `net, epoch = load(net, path)`."""
    parts = [(b, scope) for b, scope in _bindings(analysis, variable) if _statement(scope, b.node) is given.statement]
    inside = {part for binding, _ in parts if binding.value is not None for part in walk(binding.value)}
    kept: set[ast.AST] = set()

    def through(origin: Origin) -> Iterable[Origin] | None:
        node = origin.node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_same = node.func.attr in analysis.library.same_methods
            return [origin.to(node.func.value)] if is_same else None
        if node in inside and not origin.keys and variables_of(analysis, node, origin.scope) == {variable}:  # type: ignore[arg-type]
            kept.add(node)
            return ()
        return None

    for binding, scope in parts:
        if binding.kind != "value" or binding.value is None:
            return False
        found = returned(analysis, Origin(binding.value, scope, (*binding.path,)), through)
        ends = [
            origin for origin in found if not origin.keys and through(origin) is None and not sources(analysis, origin)
        ]
        if not kept or not all(isinstance(origin.node, ast.Constant) for origin in ends):
            return False
    return bool(kept)


def _handed_over(analysis: Analysis, binding: Binding, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what calls and containers give a name: `net` of `model, _ = build()`, where build returns `net, 1`."""
    known: dict[tuple[Binding, Scope], list[tuple[ast.expr, Scope]]] = analysis.fact("handed over", dict)
    if (binding, scope) not in known:
        known[binding, scope] = list(_find_handed_over(analysis, binding, scope))
    return known[binding, scope]


def _find_handed_over(analysis: Analysis, binding: Binding, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    if binding.kind != "value" or not (binding.path or isinstance(binding.value, (ast.Call, ast.Subscript))):
        return
    if binding.value is None or isinstance(part_of(binding), (ast.Name, ast.Attribute)):
        return

    def through(origin: Origin) -> Iterator[Origin] | None:
        held = _held_by(analysis, origin.node, origin.scope) if isinstance(origin.node, ast.Call) else []
        return (origin.to(part) for part in held) if held else None

    for origin in returned(analysis, Origin(binding.value, scope, (*binding.path,)), through):
        node = origin.node
        is_end = not origin.keys and node is not binding.value and is_followed(node)
        if is_end and isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            yield node, origin.scope


def _held_by(analysis: Analysis, value: ast.expr | None, scope: Scope) -> list[ast.expr]:
    """Return the expressions whose object `value` is, or wraps: x of x, x.to(place), Wrapper(x), a if b else x."""
    if isinstance(value, ast.IfExp):
        return [*_held_by(analysis, value.body, scope), *_held_by(analysis, value.orelse, scope)]
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in analysis.library.same_methods:
            return _held_by(analysis, value.func.value, scope)
        wrappers = analysis.library.wrappers
        positions = {wrappers[name] for name in analysis.called(value, scope) if name in wrappers}
        held = [value.args[position] for position in positions if position < len(value.args)]
        return [part for argument in held for part in _held_by(analysis, argument, scope)]
    return [value] if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) else []


@answered_once
def assignments_to(analysis: Analysis, variable: Variable) -> list[Assignment]:
    """Return the statements that set a variable, and those that move or load the object in place, in source order."""
    found = [Assignment(_statement(scope, b.node), scope, part_of(b)) for b, scope in _bindings(analysis, variable)]
    scopes = {assignment.scope for assignment in found}
    for scope in scopes:
        for node, function in _methods_called(analysis, scope):
            fills = function.attr in analysis.library.filling_methods or _is_of_project(analysis, function, scope)
            moves = function.attr in analysis.library.moving_methods
            if (fills or moves) and variable in variables_of(analysis, function.value, scope):
                found.append(Assignment(node, scope, only_fills=fills, in_place=True))
        for statement, holders in _parts_set(analysis, scope):
            if any(variable in variables_of(analysis, holder, scope) for holder in holders):
                found.append(Assignment(statement, scope, only_fills=True, in_place=True))
    return sorted(set(found), key=lambda a: (a.scope.source.name, a.statement.lineno, a.statement.col_offset))


def _bindings(analysis: Analysis, variable: Variable) -> list[tuple[Binding, Scope]]:
    if variable.is_attribute:
        placed = analysis.classes.attribute_bindings(variable.scope, variable.name)
        later = [analysis.classes.attributes_of(scope) for scope in analysis.classes.derived(variable.scope)]
        overriding = [pair for attributes in later for pair in attributes.get(variable.name, [])]
        return [*placed, *(pair for pair in overriding if pair[1] in known_scopes(analysis))]
    found = []
    for scope in variable.scope.module.walk():
        if scope is variable.scope or scope.outer_names.get(variable.name) is variable.scope:
            bindings = variable.scope.bindings.get(variable.name, [])
            for binding in outside_comprehensions(bindings) or bindings:
                if analysis.scope_at(scope.source, binding.node) is scope:
                    found.append((binding, scope))
    return [(binding, scope) for binding, scope in found if binding.kind != "parameter"]


def _statement(scope: Scope, node: ast.AST) -> ast.stmt:
    return scope.source.statement(node)


def _methods_called(analysis: Analysis, scope: Scope) -> list[tuple[ast.stmt, ast.Attribute]]:
    """Return the statements like `model.to(place)`, of which nothing but what they change is left, with the method."""
    known: dict[Scope, list[tuple[ast.stmt, ast.Attribute]]] = analysis.fact("methods called", dict)
    if scope not in known:
        calls = [(node, node.value) for node in own_nodes(scope.node).of(ast.Expr)]
        functions = [(node, call.func) for node, call in calls if isinstance(call, ast.Call)]
        known[scope] = [(node, function) for node, function in functions if isinstance(function, ast.Attribute)]
    return known[scope]


def _parts_set(analysis: Analysis, scope: Scope) -> list[tuple[ast.Assign, list[ast.expr]]]:
    """Return the statements that give an object a new part, with the expressions of it: `model.fc = Linear(8, 2)`."""
    known: dict[Scope, list[tuple[ast.Assign, list[ast.expr]]]] = analysis.fact("parts set", dict)
    if scope not in known:
        set_here = [(n, target) for n in own_nodes(scope.node).of(ast.Assign) for target in n.targets]
        known[scope] = [(n, _holders(target)) for n, target in set_here if _is_part(analysis, target, n.value, scope)]
    return known[scope]


def _is_part(analysis: Analysis, target: ast.expr, value: ast.expr, scope: Scope) -> bool:
    """Return whether what is set is a part of its own, or one of another object: `head.weight = body.weight`."""
    if isinstance(value, ast.Call):
        return True
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return False
    if isinstance(value, ast.Attribute) and isinstance(target, ast.Attribute) and value.attr == target.attr:
        return True
    return any(analysis.library.is_replaced(analysis, made) for made in analysis.evaluate(value, scope))


def _holders(target: ast.expr) -> list[ast.expr]:
    """Return what has a part that a statement sets: `model.head` and `model` of model.head[0] = layer."""
    found: list[ast.expr] = []
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        target = target.value
        if not isinstance(target, ast.Subscript) and not (isinstance(target, ast.Name) and target.id == "self"):
            found.append(target)
    return found


def _is_of_project(analysis: Analysis, function: ast.Attribute, scope: Scope) -> bool:
    return any(isinstance(value, LocalFunction) for value in analysis.evaluate(function, scope))
