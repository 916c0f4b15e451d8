"""Attributes that a model sets while it runs, out of sight of the training: `self.penalty = z.abs().mean()`."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from retrofit.analysis.calls import is_method
from retrofit.analysis.flow.stored import changes_of, stored_as
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Item

from ..model.modules import classes_of, is_module

CONSTRUCTOR = "__init__"


def is_set_by_model(analysis: Analysis, node: ast.Attribute, scope: Scope, followed: Container[Scope]) -> bool:
    """Return whether a method of a model that was not `followed` sets an attribute to what it computes.

    An entry of something that is not known can be any model of the project: `model.blocks[0].penalty`.
    """
    owners = classes_of(analysis, node.value, scope)
    if not owners and any(isinstance(value, Item) for value in analysis.evaluate(node.value, scope)):
        owners = analysis.fact("classes of modules", lambda: list(_modules(analysis)))
    return any(
        where not in followed and _is_computed(value, where)
        for owner in owners
        for value, where in _set_to(analysis, owner, node.attr)
    )


def _modules(analysis: Analysis) -> Iterator[Scope]:
    for scope in analysis.scopes():
        if isinstance(scope.node, ast.ClassDef) and is_module(analysis, Instance(scope)):
            yield scope


def _set_to(analysis: Analysis, owner: Scope, name: str) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what an attribute is set to, what is added to it, and what is put into it."""
    for binding, where in analysis.classes.attribute_bindings(owner, name):
        value = part_of(binding) or binding.value
        if value is not None:
            yield value, where
    yield from ((change.value, where) for change, where in changes_of(analysis, owner, name))
    yield from ((stored.value, stored.scope) for stored in stored_as(analysis, owner, name))


def _is_computed(value: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from what a method is given, or has computed; a setting is not."""
    if not scope.is_function or getattr(scope.node, "name", "") == CONSTRUCTOR:
        return False
    own = parameters(scope.node)[:1] if is_method(scope) else []  # type: ignore[arg-type]
    names = (part for part in walk(value) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return any(name.id not in own and name.id in scope.bindings for name in names)
