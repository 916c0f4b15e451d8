"""Dicts, lists and the like that hold models in training: `nets["G"](z)`, `for model in models: model(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from retrofit.analysis.flow.assignments import Assignment, assignments_to, upstream
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import stored_as
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.launch import HOLDS_ATTRIBUTES


def held_in(analysis: Analysis, node: ast.expr, scope: Scope) -> tuple[set[Variable], bool]:
    """Return the variables that a model is in, and whether they hold it as one entry of several."""
    if node not in scope.source.parents:  # the analysis's own, for a decorator
        return variables_of(analysis, node, scope), False
    known: dict[tuple[ast.expr, Scope], tuple[set[Variable], bool]] = analysis.fact("models held", dict)
    if (node, scope) not in known:
        known[node, scope] = _held_in(analysis, node, scope)
    return known[node, scope]


def _held_in(analysis: Analysis, node: ast.expr, scope: Scope) -> tuple[set[Variable], bool]:
    own = set() if _is_element(node, scope) else variables_of(analysis, node, scope)
    containers = {replace(variable, key=None) for variable in own if variable.key is not None}
    if not containers and (not own or all(_is_taken_out(analysis, variable) for variable in own)):
        containers, alone = _containers(analysis, node, scope)
        if alone and not containers:
            return alone, False
    return (containers, True) if containers else (own, False)


def variables_holding(analysis: Analysis, node: ast.expr, scope: Scope) -> set[Variable]:
    """Return the variables that a model is in, by itself or as an entry."""
    return held_in(analysis, node, scope)[0]


def entries_of(analysis: Analysis, container: Variable) -> set[Variable]:
    """Return the variables of what is put into a container, also by the function that returns it."""
    return {entry for holder in (container, *upstream(analysis, container)) for entry in _entries(analysis, holder)}


def _entries(analysis: Analysis, container: Variable) -> set[Variable]:
    parts = [(stored.value, stored.scope) for stored in stored_as(analysis, container.scope, container.name)]
    for assignment in assignments_to(analysis, container):
        display = assignment.value
        entries: list[ast.expr] = []
        if isinstance(display, (ast.List, ast.Tuple, ast.Dict)):
            entries = display.values if isinstance(display, ast.Dict) else display.elts
        elif isinstance(display, ast.Call) and "dict" in analysis.called(display, assignment.scope):
            entries = [keyword.value for keyword in display.keywords if keyword.arg is not None]
        parts += [(entry, assignment.scope) for entry in entries]
    return {variable for part, scope in parts for variable in variables_of(analysis, part, scope)}


def fillings(analysis: Analysis, container: Variable) -> list[Assignment]:
    """Return the statements that put something into a container."""
    stored = stored_as(analysis, container.scope, container.name)
    return [Assignment(part.scope.source.statement(part.value), part.scope) for part in stored]


def _is_element(node: ast.expr, scope: Scope) -> bool:
    """Return whether a name is, where it is read, that of a loop over something."""
    is_read = isinstance(node, ast.Name) and node in scope.source.parents
    bindings = live_bindings(node, scope)[1] if is_read else []  # type: ignore[arg-type]
    return bool(bindings) and all(binding.kind == "item" for binding in bindings)


def _is_taken_out(analysis: Analysis, variable: Variable) -> bool:
    """Return whether all that a variable gets are entries of something: `model = models[i]`."""
    values = [a.value for a in assignments_to(analysis, variable) if not a.only_fills]
    return bool(values) and all(isinstance(value, ast.Subscript) for value in values)


def _containers(analysis: Analysis, node: ast.expr, scope: Scope) -> tuple[set[Variable], set[Variable]]:
    """Return the variables of the containers that an expression has its value out of, and those of the value itself."""
    containers: set[Variable] = set()
    alone: set[Variable] = set()

    def through(origin: Origin) -> Iterable[Origin] | None:
        held = origin.node
        if isinstance(held, ast.Attribute) and not origin.keys and _has_attributes(analysis, held.value, origin.scope):
            return [origin.to(held.value, keys=(held.attr,))]
        if held is node or not isinstance(held, (ast.Name, ast.Attribute)) or _is_element(held, origin.scope):
            return None
        variables = {variable for variable in variables_of(analysis, held, origin.scope) if variable.key is None}
        (containers if origin.keys else alone).update(variables)
        return () if variables else None

    for _ in origins(analysis, [Origin(node, scope)], through):
        pass
    return containers, alone


def _has_attributes(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an object holds entries as attributes: Munch(generator=..., discriminator=...)."""
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Result) and value.builder in HOLDS_ATTRIBUTES for value in values)
