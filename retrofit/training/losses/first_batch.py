"""Parameters that a module sets once, from the first batch that it is given: ActNorm, data-dependent initialisation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS, STATISTICS

from .writes import WRITING, Write, writes_of

if TYPE_CHECKING:
    from retrofit.training import Project

OF_SHAPE = SHAPE_ATTRIBUTES | SHAPE_METHODS | {"device", "dtype"}


@dataclass(frozen=True)
class FirstBatchWrite(Write):
    """A write of a parameter at the first batch, with the names of that batch that its value is computed from."""

    batches: tuple[ast.Name, ...]


def first_batch_writes(project: Project) -> list[FirstBatchWrite]:
    """Return the writes that set a parameter from statistics of the first batch, under a flag that is then changed."""
    return project.analysis.fact("first batch writes", lambda: list(_find(project)))


def _find(project: Project) -> Iterator[FirstBatchWrite]:
    for scope in known_scopes(project.analysis):
        owner = scope.parent
        if owner is None or not isinstance(owner.node, ast.ClassDef) or not scope.is_function:
            continue
        if getattr(scope.node, "name", "") == "__init__" or not is_module(project.analysis, Instance(owner)):
            continue
        nodes = own_nodes(scope.node).of(*WRITING)
        writes = [(node, place, value) for node in nodes for place, value, _ in writes_of(node)]
        for node, place, value in writes:
            if _is_attribute(place) and (body := _run_once(project, node, scope)) is not None:
                batches = _batches(project, value, scope, body)
                if batches:
                    yield FirstBatchWrite(node, value, scope, ast.unparse(place), batches)


def _is_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _run_once(project: Project, node: ast.AST, scope: Scope) -> ast.AST | None:
    """Return the block around a statement that runs at the first batch alone: of an `if`, or the whole function."""
    flags = _flags(project, scope.parent)
    test = _first_time(node, scope, flags)
    if test is not None:
        return test
    sites = sites_of(project.analysis, scope)
    is_once = bool(sites) and all(_first_time(site.call, site.scope, flags) is not None for site in sites)
    return scope.node if is_once else None


def _first_time(node: ast.AST, scope: Scope, flags: set[str]) -> ast.AST | None:
    """Return the `if` around a node that asks one of the flags, or its function after `if flag: return`."""
    inner = node
    for outer in scope.source.ancestors(node):
        if isinstance(outer, ast.If) and inner in outer.body and _asks(outer, flags):
            return outer
        if outer is scope.node:
            block = block_of(scope.source, inner) if isinstance(inner, ast.stmt) else []
            earlier = block[: block.index(inner)] if isinstance(inner, ast.stmt) else []
            ends = [each for each in earlier if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return)]
            return outer if any(_asks(each, flags) for each in ends) else None
        inner = outer
    return None


def _asks(node: ast.If, flags: set[str]) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in flags for part in walk(node.test))


def _flags(project: Project, owner: Scope | None) -> set[str]:
    """Return the attributes that the methods of a class, after its `__init__`, set to one constant."""
    found: dict[str, set[str]] = {}
    for scope in known_scopes(project.analysis):
        if scope.parent is not owner or getattr(scope.node, "name", "__init__") == "__init__":
            continue
        for node in own_nodes(scope.node):
            for place, value in _set_to(node):
                found.setdefault(place.attr, set()).add(ast.unparse(value) if _is_constant(value) else "")
    return {name for name, values in found.items() if len(values) == 1 and "" not in values}


def _set_to(node: ast.AST) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes of the object that a node sets, with what: by `=`, `fill_`, or another method in place."""
    if isinstance(node, ast.Call) and last_name(node) == "fill_" and isinstance(node.func, ast.Attribute):
        place = node.func.value
        place = place.value if isinstance(place, ast.Attribute) and place.attr == "data" else place
        if isinstance(place, ast.Attribute) and _is_attribute(place):
            yield place, node.args[0]
    for place, value, _ in writes_of(node):
        if isinstance(place, ast.Attribute) and _is_attribute(place):
            yield place, value if isinstance(node, (ast.Assign, ast.Call)) else node  # type: ignore[misc]


def _is_constant(node: ast.AST) -> bool:
    """Return whether an expression is a constant, or a tensor of one."""
    if isinstance(node, ast.Call):
        return bool(node.args) and all(_is_constant(part) for part in node.args)
    return isinstance(node, ast.Constant)


def _batches(project: Project, value: ast.expr, scope: Scope, body: ast.AST) -> tuple[ast.Name, ...]:
    """Return the names, in the block, that bring what the function is given into the statistics that are written."""
    inside = set(walk(body))

    def through(origin: Origin) -> list[Origin]:
        part = origin.node
        named = part.attr if isinstance(part, ast.Attribute) else last_name(part) if isinstance(part, ast.Call) else ""
        if named in OF_SHAPE or (isinstance(part, ast.Call) and project.leads_to_collective(part, origin.scope)):
            return []
        return [found for found in inputs(project.analysis, origin) if found.node in inside]

    steps = [step.node for step in origins(project.analysis, [Origin(value, scope)], through)]
    if not any(isinstance(step, ast.Call) and last_name(step) in STATISTICS for step in steps):
        return ()
    names = [step for step in steps if isinstance(step, ast.Name)]
    return tuple(name for name in names if _comes_in(project, name, scope, inside))


def _comes_in(project: Project, name: ast.Name, scope: Scope, inside: set[ast.AST]) -> bool:
    """Return whether a name has its value from before the block, computed from what the function is given."""
    given = {each for each, bindings in scope.bindings.items() if any(b.kind == "parameter" for b in bindings)}
    found = scope.find(name.id)
    if found is None or found[0] is not scope or name.id == "self":
        return False
    if any(binding.node in inside for binding in found[1] if binding.kind != "parameter"):
        return False

    def within(origin: Origin) -> list[Origin]:
        return [part for part in inputs(project.analysis, origin) if part.scope is scope]

    steps = origins(project.analysis, [Origin(name, scope)], within)
    return any(isinstance(step.node, ast.Name) and step.node.id in given - {"self"} for step in steps)
