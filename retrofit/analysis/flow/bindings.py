"""Bindings of names and attributes, arguments passed for a parameter, and the expression that created a value."""

from __future__ import annotations

import ast

from ..calls import default_of, given_parameters
from ..scopes import FUNCTIONS, Binding, Scope
from ..values.inference import Analysis
from ..values.kinds import Display, Instance, LocalClass, Result, Value


def bindings_of(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[Binding, Scope]]:
    """Return the bindings of a name, or of an attribute of the project's objects, with their scopes."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return [(binding, binding.elsewhere or found[0]) for binding in found[1]] if found else []
    if isinstance(node, ast.Attribute):
        bindings_in = analysis.classes.attribute_bindings
        objects = [v for v in analysis.evaluate(node.value, scope) if isinstance(v, (Instance, LocalClass))]
        own = {value.scope for value in objects if isinstance(value, Instance) and value.call is None}  # of `self`
        return [
            *(pair for owner in {value.scope for value in objects} for pair in bindings_in(owner, node.attr)),
            *(pair for owner in own for pair in analysis.classes.derived_bindings(owner, node.attr)),
        ]
    return []


def class_of_own(node: ast.expr, scope: Scope) -> Scope | None:
    """Return the class whose objects have the attribute `self.name`, None for any other expression."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return scope.enclosing_class() if is_own else None


def arguments_for(analysis: Analysis, name: str, scope: Scope) -> list[tuple[ast.expr | None, Scope]]:
    """Return what every call gives for a parameter of the function that `scope` is of, None where it gives nothing."""
    assert isinstance(scope.node, FUNCTIONS)
    names = given_parameters(scope)
    return [site.argument(names, name) or (None, site.scope) for site in analysis.callers(scope.node)]


def arguments_or_default(analysis: Analysis, name: str, scope: Scope) -> list[tuple[ast.expr | None, Scope]]:
    """Return what every call gives for a parameter, its default where a call gives nothing."""
    default = default_of(scope.node, name)  # type: ignore[arg-type]
    return [(value or default, where) for value, where in arguments_for(analysis, name, scope)]


def builder_of(value: Value) -> tuple[ast.expr, Scope] | None:
    """Return the expression that a value was made by."""
    if isinstance(value, Display):
        return value.node, value.scope
    return (value.call, value.scope) if isinstance(value, Result) else None


def scope_of(analysis: Analysis, node: ast.AST) -> Scope:
    """Return the scope that a node of any of the project's files is in."""
    known = analysis.scope_of(node, None)
    if known is not None:
        return known
    source = next(source for source in analysis.modules.sources.values() if node in source.parents)
    return analysis.scope_at(source, node)
