"""Contents that objects get after they are made: `x.append(y)`, `x[key] = y`, `x.update(key=y)`, `x.name = y`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, Union

from ..calls import given_parameters, is_method
from ..python_api import ADDS_ALL, ADDS_ONE
from ..scopes import FUNCTIONS, Scope, own_nodes, parameters, positions_in
from ..values.inference import Analysis
from ..values.kinds import Instance, LocalClass, LocalModule
from .bindings import arguments_for

Keys = tuple[object, ...]  # of entries of containers in containers, outermost first; None: not known
ScopedName = tuple[Scope, str]  # a scope and a name in it, or a class and an attribute of its objects
OTHER_MEANINGS = frozenset({"add", "insert", "push", "put"})  # for other objects: they return a result


@dataclass(frozen=True)
class Stored:
    """An expression that is put into a container under a `key`, None where that is not known.

    `is_spread`: it is a container itself, whose entries are put there.
    """

    value: ast.expr
    scope: Scope
    key: object = None
    is_spread: bool = False


@dataclass(frozen=True)
class Changed:
    """A statement `losses[key] += x` that changes an entry of a container; `key`: None where that is not known."""

    statement: ast.AugAssign
    scope: Scope
    key: object = None
    is_spread = False


Fill = TypeVar("Fill", bound=Union[Stored, Changed])


def stored_in(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Stored]:
    """Return what is put into the container that a name, or an attribute of the project's objects, holds."""
    known: dict[ScopedName, list[Stored]] = analysis.fact("stored", lambda: _all_stored(analysis))
    return [stored for variable in variables_at(analysis, node, scope) for stored in known.get(variable, [])]


def stored_as(analysis: Analysis, owner: Scope, name: str) -> list[Stored]:
    """Return what is put into the container in a variable of a scope, or in an attribute of the objects of a class."""
    known: dict[ScopedName, list[Stored]] = analysis.fact("stored", lambda: _all_stored(analysis))
    is_class = isinstance(owner.node, ast.ClassDef)
    owners = [*analysis.classes.mro(owner), *analysis.classes.derived(owner)] if is_class else [owner]
    return [stored for part in dict.fromkeys(owners) for stored in known.get((part, name), [])]


def changed_in(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Changed]:
    """Return what changes entries of the container that a name, or an attribute of the project's objects, holds."""
    known: dict[ScopedName, list[Changed]] = analysis.fact("changed entries", lambda: _all_changed(analysis))
    return [changed for variable in variables_at(analysis, node, scope) for changed in known.get(variable, [])]


def changes_of(analysis: Analysis, owner: Scope, name: str) -> list[tuple[ast.AugAssign, Scope]]:
    """Return the statements `self.name += x` that change an attribute of a class's objects."""
    known = analysis.fact("changed attributes", lambda: _all_changes(analysis)[0])
    return [change for part in analysis.classes.mro(owner) for change in known.get((part, name), [])]


def set_from_outside(analysis: Analysis, owner: Scope, name: str) -> Iterator[tuple[ast.expr, Scope, Keys]]:
    """Yield what `model.name = x` gives to an attribute of a class's objects, or of a module, in other code.

    With the keys of its entry: (1,) of `batch` in `model.input, model.target = batch`.
    """
    known = analysis.fact("attributes set", lambda: _all_set(analysis))
    for holder, value, scope, keys in known.get(name, []):
        if _may_be_of(analysis, holder, scope, owner):
            yield value, scope, keys


def set_on_same(analysis: Analysis, node: ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what `args.seed = x` gives, anywhere, to an attribute of the same object as in `args.seed`."""
    known = analysis.fact("attributes set", lambda: _all_set(analysis))
    for holder, value, where, keys in known.get(node.attr, []):
        if not keys and analysis.evaluate(holder, where) & analysis.evaluate(node.value, scope):
            yield value, where


def changed_on_same(analysis: Analysis, node: ast.Attribute, scope: Scope) -> Iterator[tuple[ast.AugAssign, Scope]]:
    """Yield the statements `losses.total += x`, anywhere, that change an attribute of the same object."""
    known = analysis.fact("changed attributes of others", lambda: _all_changes(analysis)[1])
    for change, where in known.get(node.attr, []):
        holder = change.target.value  # type: ignore[union-attr]
        if analysis.evaluate(holder, where) & analysis.evaluate(node.value, scope):
            yield change, where


def sets_by_text(analysis: Analysis, owner: Scope) -> bool:
    """Return whether attributes of a class's objects are set by texts: setattr(self, name, value), vars(self)."""
    holders = analysis.fact("attributes set by texts", lambda: list(_set_by_text(analysis)))
    return any(_may_be_of(analysis, holder, scope, owner) for holder, scope in holders)


def _may_be_of(analysis: Analysis, holder: ast.expr, scope: Scope, owner: Scope) -> bool:
    """Return whether an expression is a module or can be an object of a class, of a base or of one derived from it."""
    kinds = analysis.evaluate(holder, scope)
    held = {kind.scope for kind in kinds if isinstance(kind, (Instance, LocalClass, LocalModule))}
    return any(owner in analysis.classes.mro(kind) or kind in (owner, *analysis.classes.mro(owner)) for kind in held)


def literal_key(node: ast.expr | None) -> object:
    """Return the key or the index that is written down, None for any other."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def own_variable(node: ast.expr, scope: Scope) -> ScopedName | None:
    """Return the variable that a name is, or `self.name` in a method."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return (found[0], node.id) if found is not None else None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    found = scope.find(node.value.id)
    method = found[0] if found is not None else scope
    if not is_method(method) or parameters(method.node)[:1] != [node.value.id]:  # type: ignore[arg-type]
        return None
    owner = method.enclosing_class()
    return (owner, node.attr) if owner is not None else None


def variables_at(analysis: Analysis, node: ast.expr, scope: Scope) -> list[ScopedName]:
    """Return the variables that a name is, or an attribute of objects of the project: also of `model.queue`."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return [(found[0], node.id)] if found is not None else []
    if not isinstance(node, ast.Attribute):
        return []
    values = analysis.evaluate(node.value, scope)
    owners = dict.fromkeys(value.scope for value in values if isinstance(value, Instance))
    return [(part, node.attr) for owner in owners for part in analysis.classes.mro(owner)]


def _all_stored(analysis: Analysis) -> dict[ScopedName, list[Stored]]:
    found: dict[ScopedName, list[Stored]] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Assign, ast.Call):
            for container, stored in _stored_by(analysis, node, scope):
                for chosen in _choices(container):
                    variable = own_variable(chosen, scope)
                    if variable is not None:
                        found[variable].append(stored)
    return _with_callers(analysis, found)


def _with_callers(analysis: Analysis, found: dict[ScopedName, list[Fill]]) -> dict[ScopedName, list[Fill]]:
    """Add what functions put into containers that they are given to the variables that are given to them."""
    waiting = list(found)
    while waiting:
        scope, name = waiting.pop()
        if not isinstance(scope.node, FUNCTIONS) or name not in given_parameters(scope):
            continue
        for value, where in arguments_for(analysis, name, scope):
            variable = own_variable(value, where) if value is not None else None
            if variable is not None:
                new = [fill for fill in found[scope, name] if fill not in found.get(variable, [])]
                found.setdefault(variable, []).extend(new)
                waiting += [variable] if new else []
    return dict(found)


def _choices(container: ast.expr) -> list[ast.expr]:
    """Return the containers that an expression chooses from: both lists of `(biases if small else rest).append(x)`."""
    if isinstance(container, ast.IfExp):
        return [*_choices(container.body), *_choices(container.orelse)]
    return [container]


def _stored_by(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Stored]]:
    """Yield the container that a node fills, with what it puts in there."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield target.value, Stored(node.value, scope, literal_key(target.slice))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        if name in OTHER_MEANINGS and not _stores(analysis, node, owner, scope):
            return
        if name == "update" and analysis.functions_called(node, scope):
            return  # a method of the project, not that of a dict: what it stores is seen in it
        if name in ADDS_ONE and node.args:
            key = literal_key(node.args[0]) if name == "setdefault" else None
            yield owner, Stored(node.args[-1], scope, key)
        elif name in ADDS_ALL:
            yield from ((owner, Stored(argument, scope, is_spread=True)) for argument in node.args)
            yield from ((owner, Stored(keyword.value, scope, keyword.arg)) for keyword in node.keywords if keyword.arg)


def _stores(analysis: Analysis, node: ast.Call, owner: ast.expr, scope: Scope) -> bool:
    """Return whether `x.add(y)` puts something into x: its result is not used, and x is not an array."""
    if not isinstance(scope.source.parents.get(node), ast.Expr):
        return False
    if node.func.attr != "add":  # type: ignore[attr-defined]
        return True
    packages = {name.partition(".")[0] for name in analysis.named(owner, scope)}
    return packages.isdisjoint(analysis.library.functional_packages)


def _all_changed(analysis: Analysis) -> dict[ScopedName, list[Changed]]:
    found: dict[ScopedName, list[Changed]] = defaultdict(list)
    for scope in analysis.scopes():
        for change in own_nodes(scope.node).of(ast.AugAssign):
            target = change.target
            variable = own_variable(target.value, scope) if isinstance(target, ast.Subscript) else None
            if variable is not None:
                found[variable].append(Changed(change, scope, literal_key(target.slice)))  # type: ignore[union-attr]
    return _with_callers(analysis, found)


def _all_set(analysis: Analysis) -> dict[str, list[tuple[ast.expr, ast.expr, Scope, Keys]]]:
    found: dict[str, list[tuple[ast.expr, ast.expr, Scope, Keys]]] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Assign):
            for whole in node.targets:
                for target, keys in _attributes_in(whole):
                    if own_variable(target, scope) is None:
                        found[target.attr].append((target.value, node.value, scope, keys))  # type: ignore[attr-defined]
    return dict(found)


def _attributes_in(target: ast.expr, keys: Keys = ()) -> Iterator[tuple[ast.Attribute, Keys]]:
    """Yield the attributes that a target sets, with the keys of their entries in what it is set to."""
    if isinstance(target, ast.Attribute):
        yield target, keys
    elif isinstance(target, (ast.Tuple, ast.List)):
        for index, part in positions_in(target):
            yield from _attributes_in(part, (*keys, index))


def _set_by_text(analysis: Analysis) -> Iterator[tuple[ast.expr, Scope]]:
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Call, ast.Attribute):
            if isinstance(node, ast.Attribute):
                if node.attr == "__dict__":
                    yield node.value, scope
            elif node.args and getattr(node.func, "id", "") in ("setattr", "vars"):
                yield node.args[0], scope


def _all_changes(
    analysis: Analysis,
) -> tuple[dict[ScopedName, list[tuple[ast.AugAssign, Scope]]], dict[str, list[tuple[ast.AugAssign, Scope]]]]:
    """Return the statements that change attributes: of `self` by class and name, of other objects by name."""
    own: dict[ScopedName, list[tuple[ast.AugAssign, Scope]]] = defaultdict(list)
    others: dict[str, list[tuple[ast.AugAssign, Scope]]] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.AugAssign):
            if isinstance(node.target, ast.Attribute):
                variable = own_variable(node.target, scope)
                known = own[variable] if variable is not None else others[node.target.attr]
                known.append((node, scope))
    return dict(own), dict(others)
