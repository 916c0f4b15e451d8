"""Accumulators of a loop over batches: numbers, arrays, lists with an entry per batch, meters of own classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import FUNCTIONS, Binding, Function, Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance

from .initial_values import is_zero_value

SUM, LIST, METER = "sum", "list", "meter"
RESETTING = ("__init__", "reset")


@dataclass(frozen=True)
class Accumulator:
    """Something that every batch adds to. `target` is how the loop calls it: `total`, `meters["loss"]`."""

    kind: str
    target: ast.expr
    meter: Meter | None = None


@dataclass(frozen=True)
class Meter:
    """How a method of a class accumulates: attributes that are added to, and those that follow from them."""

    sums: tuple[str, ...]
    derived: dict[str, str] = field(hash=False)  # the expression of each, in which the object is called `receiver`
    receiver: str
    others: tuple[str, ...]  # attributes that hold something of the last batch
    readers: tuple[str, ...]  # methods that only read sums and what is derived


def meter_of(analysis: Analysis, instance: Instance, method_name: str) -> Meter | None:
    """Return how a method accumulates, None when it does anything else, or does not start from zero."""
    method = analysis.classes.method(instance.scope, method_name)
    if method is None or not isinstance(method.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    receiver = (parameters(method.node) or [""])[0]
    added = {node: name for node in own_nodes(method.node) if (name := _added(node, receiver)) is not None}
    sums = tuple(dict.fromkeys(added.values()))
    derived: dict[str, str] = {}
    others: list[str] = []
    for node in own_nodes(method.node):
        name = _set_by(node, receiver)
        if name is None or node in added:
            continue
        if node in method.node.body and _reads_only(node.value, receiver, {*sums, *derived}):  # type: ignore[attr-defined]
            derived[name] = method.scope.source.segment(node.value)  # type: ignore[attr-defined]
        else:
            others.append(name)
    readers = _readers(analysis, instance, set(others))
    changing = {*derived, *others}
    read = {part for node in added for part in _contents_read(node.value, receiver)} - {*readers}  # type: ignore[attr-defined]
    if not sums or changing & {*sums, *read} or _calls_others(method.node, receiver, readers):
        return None
    if read & set(sums) - {name for node, name in added.items() if isinstance(node, ast.Assign)}:
        return None
    if not _starts_from_zero(analysis, instance, sums):
        return None
    return Meter(sums, derived, receiver, tuple(others), readers)


def _added(node: ast.AST, receiver: str) -> str | None:
    """Return the attribute in `self.total += x` and `self.total = self.total + x`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return _own_attribute(node.target, receiver)
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        name = _own_attribute(node.targets[0], receiver)
        if isinstance(node.value.op, ast.Add) and _own_attribute(node.value.left, receiver) == name:
            return name
    return None


def _set_by(node: ast.AST, receiver: str) -> str | None:
    """Return the attribute of the object that a statement sets; what sets more than one sets something unknown."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [name for target in targets for name in _own_attributes(target, receiver)]
    return "?" if len(names) > 1 else names[0] if names else None


def _calls_others(function: Function, receiver: str, readers: tuple[str, ...]) -> bool:
    """Return whether a method calls others of its object that do more than compute."""
    return any(
        isinstance(node, ast.Call) and (name := _own_attribute(node.func, receiver)) is not None and name not in readers
        for node in own_nodes(function)
    )


def _own_attribute(node: ast.expr, receiver: str) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == receiver:
        return node.attr
    return None


def _own_attributes(node: ast.AST, receiver: str) -> set[str]:
    names = (_own_attribute(part, receiver) for part in walk(node) if isinstance(part, ast.expr))
    return {name for name in names if name is not None}


def _contents_read(node: ast.AST, receiver: str) -> set[str]:
    """Return the attributes that an expression reads, without those of which it asks for the shape only."""
    found = _own_attribute(node, receiver) if isinstance(node, ast.expr) else None
    if found is not None:
        return {found}
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device", "ndim"):
        return set()
    return {name for part in children(node) for name in _contents_read(part, receiver)}


def _reads_only(node: ast.AST, receiver: str, attributes: set[str]) -> bool:
    """Return whether an expression is of some attributes of the object alone, and calls nothing but functions."""
    if not _own_attributes(node, receiver) <= attributes:
        return False
    for part in walk(node):
        if isinstance(part, ast.Name) and part.id != receiver and part.id not in ("max", "min", "float", "int"):
            return False
    return True


def _starts_from_zero(analysis: Analysis, instance: Instance, sums: tuple[str, ...]) -> bool:
    bindings = [analysis.classes.attribute_bindings(instance.scope, name) for name in sums]
    resets = [
        [
            (binding, scope)
            for binding, scope in found
            if getattr(scope.node, "name", "") in RESETTING and binding.value is not None
        ]
        for found in bindings
    ]
    return all(found and all(_is_set_to_zero(analysis, b, s) for b, s in found) for found in resets)


def _is_set_to_zero(analysis: Analysis, binding: Binding, scope: Scope) -> bool:
    """Return whether `self.sum = 0` or `self.sum, self.count = 0.0, 0` sets an attribute to zero."""
    value = part_of(binding)
    return value is not None and is_zero_value(analysis, value, scope)


def _readers(analysis: Analysis, instance: Instance, others: set[str]) -> tuple[str, ...]:
    """Return the methods and properties that only compute something of sums and settings of the object."""
    found = []
    for scope in analysis.classes.mro(instance.scope):
        for name, bindings in scope.bindings.items():
            functions = [b.node for b in bindings if b.kind == "definition" and isinstance(b.node, FUNCTIONS)]
            if functions and all(_only_reads(function, others) for function in functions):
                found.append(name)
    return tuple(found)


def _only_reads(function: Function, others: set[str]) -> bool:
    receiver = (parameters(function) or [""])[0]
    for node in walk(function):
        if isinstance(node, ast.Attribute) and _own_attribute(node, receiver) is not None:
            is_read = isinstance(node.ctx, ast.Load)
            if not is_read or node.attr in others:
                return False
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return False
    return True
