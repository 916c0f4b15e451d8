"""Objects in the containers of a library, which run what they are given; draws of some of several objects.

And in attributes that a program sets on an object where it uses it, and calls: `args.criterion = Dice()`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from ..calls import is_method, is_own
from ..python_api import NAMESPACES
from ..scopes import Scope, own_nodes, parameters
from .kinds import (
    NOTHING,
    Display,
    Instance,
    LocalClass,
    LocalFunction,
    LocalModule,
    Member,
    Result,
    Value,
    Values,
)

if TYPE_CHECKING:
    from .inference import Analysis

LIST, DICT, SEPARATE = "list", "dict", "separate"  # what a container is given: [a, b], {"a": a}, and a, b
ADDS = {"append": 0, "insert": 1, "add_module": 1}  # with the position of what is added
ADDS_ALL = frozenset({"extend", "update"})
MOST_DEPTH = 8  # of containers that are made of others
Store = tuple[ast.Attribute, ast.expr, Scope]
Added = list[tuple[ast.expr, Scope, bool]]  # expressions, and whether what is in them is added


def objects_held(analysis: Analysis, container: Result, key: object = None) -> Values:
    """Return what is in a container of a library: what it is given when it is made, and what is added later."""
    if container.builder not in analysis.library.holders:
        return NOTHING
    return _inside(analysis, container, key, MOST_DEPTH)


def objects_added(analysis: Analysis, value: Value) -> Values:
    """Return what is put later into a list that is made empty, as far as it can be called: objects, functions."""
    if not isinstance(value, Display) or not isinstance(value.node, ast.List) or value.node.elts:
        return NOTHING
    added = [(part, scope) for part, scope, is_spread in _added(analysis, value.node, value.scope) if not is_spread]
    found = NOTHING.union(*(analysis.evaluate(part, scope) for part, scope in added))
    return frozenset(each for each in found if isinstance(each, (Instance, LocalFunction)) or _is_object(each))


def _is_object(value: Value) -> bool:
    return isinstance(value, Result) and value.builder.rpartition(".")[2][:1].isupper()


def _inside(analysis: Analysis, container: Value, key: object, depth: int) -> Values:
    if not isinstance(container, (Display, Result)) or not depth:
        return NOTHING
    scope = container.scope
    made = container.node if isinstance(container, Display) else container.call
    found: list[Values] = []
    for given, where, is_spread in [*_given(analysis, container), *_added(analysis, made, scope)]:
        values = analysis.evaluate(given, where)
        if not is_spread:
            found.append(values)
            continue
        for value in values:
            entries = analysis.containers.entry(value, key)
            found += [entries, _inside(analysis, value, key, depth - 1) if isinstance(value, Display) else NOTHING]
    return NOTHING.union(*found)


def _given(analysis: Analysis, container: Display | Result) -> Added:
    """Return what a container of a library is given when it is made; a list has its own entries without this."""
    if isinstance(container, Display):
        return []
    call, scope = container.call, container.scope
    if analysis.library.holders.get(container.builder) == SEPARATE:
        parts = [(part.value, True) if isinstance(part, ast.Starred) else (part, False) for part in call.args]
        return [(part, scope, is_spread) for part, is_spread in parts]
    return [(part, scope, True) for part in call.args]


def _added(analysis: Analysis, made: ast.expr, scope: Scope) -> Added:
    """Return what is added later to a container, in the variable or the attribute that it is assigned to."""
    statement = scope.source.parents.get(made)
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
    known = analysis.fact("added to containers", lambda: _all_added(analysis))
    variables = (_variable(target, scope) for target in targets)
    return [each for variable in variables if variable is not None for each in known.get(variable, [])]


def _all_added(analysis: Analysis) -> dict[tuple[Scope, str], Added]:
    found: dict[tuple[Scope, str], Added] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node):
            for container, value, is_spread in _adding(node):
                if (variable := _variable(container, scope)) is not None:
                    found[variable].append((value, scope, is_spread))
    return dict(found)


def _adding(node: ast.AST) -> list[tuple[ast.expr, ast.expr, bool]]:
    """Return the container that a node adds to, with what it adds, and whether that is the content of it."""
    if isinstance(node, ast.Assign):
        return [(part.value, node.value, False) for part in node.targets if isinstance(part, ast.Subscript)]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return [(node.target, node.value, True)]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    name, container = node.func.attr, node.func.value
    if name in ADDS_ALL:
        return [(container, part, True) for part in node.args]
    return [(container, part, False) for part in node.args[ADDS.get(name, len(node.args)) :][:1]]


def _variable(node: ast.expr, scope: Scope) -> tuple[Scope, str] | None:
    """Return the variable that a name is, or `self.name` in a method; nothing is evaluated for it."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return (found[0], node.id) if found is not None else None
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and is_method(scope)):
        return None
    owner = scope.enclosing_class() if parameters(scope.node)[:1] == [node.value.id] else None  # type: ignore[arg-type]
    return (owner, node.attr) if owner is not None else None


def one_picked(analysis: Analysis, function: str, call: ast.Call, scope: Scope) -> Values:
    """Return what a call gives that takes one of several."""
    given = _taken_from(analysis, function, call, scope, analysis.library.picking)
    return NOTHING if given is None else analysis.containers.elements(given, scope, ())


def several_picked(analysis: Analysis, value: Result) -> Values:
    """Return what is in a list of some of several: random.sample(losses, 2)."""
    given = _taken_from(analysis, value.builder, value.call, value.scope, analysis.library.picking_several)
    return NOTHING if given is None else analysis.containers.elements(given, value.scope, ())


def _taken_from(
    analysis: Analysis, function: str, call: ast.Call, scope: Scope, picking: Collection[str]
) -> ast.expr | None:
    """Return what a draw takes from, also where another function makes it: draw_together(random.choice, losses)."""
    given, names = call.args, {function}
    if given and function in analysis.library.calling:
        names, given = analysis.named(given[0], scope), given[1:]
    return given[0] if given and names & set(picking) else None


def set_outside(analysis: Analysis, base: Value, name: str) -> Values:
    """Return what else the attribute `name` of a value can be: what statements outside of its methods set it to.

    Numbers, texts and lists are left out: they are options, which the user of a program sets as well.
    """
    if not isinstance(base, (Instance, LocalClass, LocalModule, Result, Member)):
        return NOTHING
    stores: dict[str, list[Store]] = analysis.fact("attributes set outside", lambda: _stores(analysis))
    given = [store for store in stores.get(name, []) if _is_of(analysis, store, base)]
    found: Values = frozenset().union(*(analysis.evaluate(value, scope) for _, value, scope in given))
    if isinstance(base, Result) and base.builder in NAMESPACES:
        kept = [keyword.value for keyword in base.call.keywords if keyword.arg == name]
        found = found.union(*(analysis.evaluate(value, base.scope) for value in kept))
    return frozenset(value for value in found if not isinstance(value, (Display, Member)))


def _is_of(analysis: Analysis, store: Store, base: Value) -> bool:
    target, _, scope = store
    values = analysis.evaluate(target.value, scope)
    if isinstance(base, (Instance, LocalClass)):
        kinds = analysis.classes.mro(base.scope)
        return any(isinstance(value, (Instance, LocalClass)) and value.scope in kinds for value in values)
    return base in values


def _stores(analysis: Analysis) -> dict[str, list[Store]]:
    """Return by name what attributes are set to, but for those of `self`, which are known by the class."""
    found: dict[str, list[Store]] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and not is_own(target.value, scope):
                    found[target.attr].append((target, node.value, scope))
    return found
