"""Data that a training fills itself while it runs: buffers, banks of features, the rollouts of a policy."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.flow.operands import inputs, operands
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, is_followed, origins
from retrofit.analysis.flow.stored import literal_key, stored_in
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.python_api import ADDS_ALL, ADDS_ONE
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import LocalFunction

from ..sized.made_before import of_losses

if TYPE_CHECKING:
    from ... import Project

ADDS = frozenset({*ADDS_ALL, *ADDS_ONE})


def is_filled_by_model(project: Project, node: ast.expr, scope: Scope, model_calls: Collection[ast.AST]) -> bool:
    """Return whether a training loop puts into `node` what a model in that loop computes, or leads to: a rollout."""
    in_loops = project.nodes_in_loops
    stored: set[Origin] = set()

    def through(origin: Origin) -> list[Origin]:
        if _returns_before(project, origin, in_loops):
            return [origin.to(part, keys=()) for part in operands(origin.node)]
        found = _computed_from(project, origin)
        if isinstance(origin.node, (ast.Name, ast.Attribute)) and is_followed(origin.node):
            put_in = stored_in(project.analysis, origin.node, origin.scope)
            given = [Origin(part.value, part.scope) for part in put_in if part.value in in_loops]
        elif isinstance(origin.node, ast.Subscript):
            given = _put_into_entries(project, origin)
        else:
            given = []
        stored.update(given)
        return found + given

    for _ in origins(project.analysis, [Origin(node, scope)], through):
        pass
    put_in = origins(project.analysis, list(stored), through)
    return any(origin.node in model_calls and origin.node in in_loops for origin in put_in)


def _computed_from(project: Project, origin: Origin) -> list[Origin]:
    """Return what an expression is computed from, one step before: a parameter, of what the losses give it.

    Other calls may give a function what a model has computed, such as one that shows samples.
    """
    found = list(inputs(project.analysis, origin))
    if not isinstance(origin.node, ast.Name) or not is_followed(origin.node):
        return found
    bindings = live_bindings(origin.node, origin.scope)[1]
    is_parameter = any(binding.kind == "parameter" for binding in bindings)
    return [part for part in found if part.node in of_losses(project)] or found if is_parameter else found


def _returns_before(project: Project, origin: Origin, in_loops: Collection[ast.AST]) -> bool:
    """Return whether a function has run before the training: what it filled then is not what the training fills in it.

    That holds of a solver, or a simulation, by which both the data are made and the model is trained.
    """
    node = origin.node
    if not isinstance(node, ast.Call) or node in in_loops:
        return False
    made = project.analysis.evaluate(node.func, origin.scope)
    return bool(made) and all(isinstance(value, LocalFunction) for value in made)


def _put_into_entries(project: Project, origin: Origin) -> list[Origin]:
    """Return what training loops put into a container that is an entry of another: storage["states"][t] = state."""
    analysis, node = project.analysis, origin.node
    assert isinstance(node, ast.Subscript)
    owners, key = variables_of(analysis, node.value, origin.scope), literal_key(node.slice)
    return [
        Origin(value, scope)
        for entry, value, scope in project.analysis.fact("filled entries", lambda: list(_filled_entries(project)))
        if key in (None, own := literal_key(entry.slice)) or own is None
        if owners & variables_of(analysis, entry.value, scope)
    ]


def _filled_entries(project: Project) -> Iterator[tuple[ast.Subscript, ast.expr, Scope]]:
    """Yield the entries of containers into which a training loop puts something, with what it puts there."""
    for node, scope in project.in_loops:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDS:
            if isinstance(node.func.value, ast.Subscript):
                yield from ((node.func.value, given, scope) for given in node.args)
        elif isinstance(node, ast.Assign):
            inner = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
            yield from ((entry, node.value, scope) for entry in inner if isinstance(entry, ast.Subscript))


def filled_in(project: Project) -> set[Variable]:
    """Return the variables of what the training loops put something into, and the attributes that they set."""

    return project.analysis.fact("filled in training", lambda: changed_by(project, project.in_loops))


def changed_by(project: Project, nodes: Iterable[tuple[ast.AST, Scope]]) -> set[Variable]:
    """Return the variables of what statements put something into, and the attributes that they set."""
    found: set[Variable] = set()
    for node, scope in nodes:
        changed: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDS:
            changed = [node.func.value]
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            changed = [t.value for t in targets if isinstance(t, ast.Subscript)]
            is_new = getattr(scope.node, "name", "") == "__init__"  # an object that is made in each step
            attributes = [t for t in targets if isinstance(t, ast.Attribute) and not is_new]
            found |= {v for t in attributes for v in variables_of(project.analysis, t, scope) if v.is_attribute}
        for part in changed:
            found |= variables_of(project.analysis, part, scope)
    return found
