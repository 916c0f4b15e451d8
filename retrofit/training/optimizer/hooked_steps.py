"""Steps of an optimizer that use what hooks on layers have kept: inputs and gradients of one rank's own samples."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalClass, LocalFunction
from retrofit.training.torch_api.modules import HOOKING, PARAMETERS_OF_LAYERS

Place = tuple[ast.Call, Scope]
UPDATED = frozenset({"data", "grad"})  # of a parameter


def hooked_steps(
    analysis: Analysis, nodes: Iterable[tuple[ast.AST, Scope]], in_batches: Iterable[tuple[ast.AST, Scope]]
) -> list[Place]:
    """Return the calls among `nodes` that hook functions on layers, of whose values updates of parameters are made.

    `in_batches`: the nodes in which such updates count, those that run for each batch.
    """
    hooks = [(call, scope, function) for call, scope in nodes for function in _hooked(analysis, call, scope)]
    kept: dict[str, Place] = {}
    for call, scope, function in hooks:
        for name in _kept_by(function):
            kept.setdefault(name, (call, scope))  # type: ignore[arg-type]
    if not kept:
        return []
    own = {function.scope for _, _, function in hooks}
    starts = [Origin(value, scope) for node, scope in in_batches if scope not in own for value in _updates(node, scope)]
    used = origins(analysis, starts, partial(inputs, analysis, stored=True))
    names = dict.fromkeys(_name(part.node) for part in used)
    found = dict.fromkeys(kept[name] for name in names if name in kept)
    return list(dict.fromkeys(place for call, scope in found for place in _made_at(analysis, call, scope)))


def _made_at(analysis: Analysis, call: ast.Call, scope: Scope) -> list[Place]:
    """Return where objects are made whose class hooks its functions on layers; the call itself outside of classes."""
    owner = scope.parent
    if owner is None or not isinstance(owner.node, ast.ClassDef):
        return [(call, scope)]
    made = [
        (node, where)
        for node, where in reached_calls(analysis)
        if any(isinstance(v, LocalClass) and v.scope is owner for v in analysis.evaluate(node.func, where))
    ]
    return made or [(call, scope)]


def _hooked(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[LocalFunction]:
    """Yield the functions of the project that a call hooks on a layer."""
    is_hooking = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in HOOKING
    for given in node.args[:1] if is_hooking else ():  # type: ignore[attr-defined]
        for value in analysis.evaluate(given, scope):
            yield from (function for function, _ in analysis.functions_of(value))


def _kept_by(function: LocalFunction) -> Iterator[str]:
    """Yield the names of the attributes, and of the containers, that a hook changes: no counts."""
    for node in own_nodes(function.node):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if not isinstance(target, ast.Name)]
        elif isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.Constant):
            targets = [node.target]
        elif isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and node.args
            targets = [node.func.value] if is_method else []  # type: ignore[attr-defined]
            targets += [part for part in node.args if isinstance(part, (ast.Attribute, ast.Subscript))]
        own = {argument.arg for argument in walk(function.node) if isinstance(argument, ast.arg)}
        yield from {_name(target) for target in targets} - own - UPDATED - PARAMETERS_OF_LAYERS - {""}


def _name(node: ast.AST) -> str:
    """Return `x` of x and of x[key], and of the attribute anything.x; "" for everything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _updates(node: ast.AST, scope: Scope) -> list[ast.expr]:
    """Return what a statement makes new values, or gradients, of parameters of."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.value] if any(_has(target, UPDATED) for target in targets) else []
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    name = node.func.attr
    if not name.endswith("_") or name.startswith("_"):
        return []
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_update = _has(node.func.value, UPDATED) or _steps(scope) or any(_has(part, {"grad"}) for part in given)
    return given if is_update else []


def _has(node: ast.AST, attributes: Iterable[str]) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in attributes for part in walk(node))


def _steps(scope: Scope) -> bool:
    """Return whether a function is a method of a class that has a step: an optimizer."""
    owner = scope.parent.node if scope.parent is not None else None
    methods = owner.body if isinstance(owner, ast.ClassDef) else []
    return any(isinstance(method, ast.FunctionDef) and method.name == "step" for method in methods)
