"""Attributes that a model sets while it runs, out of sight of the training: `self.penalty = z.abs().mean()`."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis

from ..model.modules import classes_of

Setting = tuple[str, Scope]  # an attribute, and the method that sets it


def is_set_by_model(analysis: Analysis, node: ast.Attribute, scope: Scope, followed: Container[Scope]) -> bool:
    """Return whether a method of a model that was not `followed` sets an attribute to what it computes."""
    known: dict[Scope, list[Setting]] = analysis.fact("attributes set by models", dict)
    for owner in classes_of(analysis, node.value, scope):
        for parent in analysis.classes.mro(owner):
            if parent not in known:
                known[parent] = list(_set_in(analysis, parent))
            if any(name == node.attr and method not in followed for name, method in known[parent]):
                return True
    return False


def _set_in(analysis: Analysis, owner: Scope) -> Iterator[Setting]:
    for name in owner.bindings:
        method = analysis.classes.own_method(owner, name)
        if method is None or name == "__init__":
            continue
        for node in own_nodes(method.scope.node):
            if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_computed(node.value, method.scope):
                yield from ((target.attr, method.scope) for target in targets if _is_own(target))  # type: ignore[attr-defined]


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def _is_computed(value: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from what a method is given, or has computed; a setting is not."""
    names = (part for part in ast.walk(value) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return any(name.id != "self" and name.id in scope.bindings for name in names)
