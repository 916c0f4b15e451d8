"""Layers with weights that a model makes for itself when it runs: its wrapper has been made without them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.training.torch_api.modules import SETS_ATTRIBUTE, WITH_PARAMETERS

from ..modules import is_module

if TYPE_CHECKING:
    from ... import Project

WITH_WEIGHTS = (
    *WITH_PARAMETERS, "InstanceNorm", "Lazy", "ModuleDict", "ModuleList", "Parameter", "RMSNorm", "Sequential",
    "SyncBatchNorm",
)  # fmt: skip


def late_layers(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield what sets an attribute of a trained model to a new layer, in a method that its forward pass comes to."""
    runs = [(call.call, call.scope) for model in project.models for call in model.calls]
    for scope in (function.scope for function in functions_reached(project.analysis, runs)):
        owner = scope.enclosing_class()
        if owner is None or not is_module(project.analysis, Instance(owner)) or not isinstance(scope.node, FUNCTIONS):
            continue
        own = parameters(scope.node)[:1]
        if getattr(scope.node, "name", "") == "__init__" or not own:
            continue
        for node in own_nodes(scope.node):
            if any(_is_made_here(project.analysis, value, scope) for value in _set(node, own[0])):
                yield node, scope


def _set(node: ast.AST, own: str) -> Iterator[ast.expr]:
    """Yield what a statement, or a call, sets an attribute of the object `own` to, or puts into one."""
    if isinstance(node, ast.Assign) and any(_is_of(target, own) for target in node.targets):
        yield node.value
    if not isinstance(node, ast.Call):
        return
    name = last_name(node)
    if name == "setattr" and len(node.args) == 3 and _is_named(node.args[0], own):
        yield node.args[2]
    elif isinstance(node.func, ast.Attribute):
        holder = node.func.value
        if name in SETS_ATTRIBUTE and len(node.args) == 2 and _is_named(holder, own):
            yield node.args[1]
        elif name in GROWS_LIST and node.args and _is_of(holder, own):
            yield node.args[-1]


def _is_of(node: ast.expr, own: str) -> bool:
    return isinstance(node, ast.Attribute) and _is_named(node.value, own)


def _is_named(node: ast.expr, own: str) -> bool:
    return isinstance(node, ast.Name) and node.id == own


def _is_made_here(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a layer with weights that the same function makes."""
    made = {node for node in own_nodes(scope.node).of(ast.Call)}
    return any(_has_weights(analysis, v) for v in analysis.evaluate(node, scope) if getattr(v, "call", None) in made)


def _has_weights(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Result):
        package, _, name = value.builder.rpartition(".")
        return package.startswith("torch.nn") and name.startswith(WITH_WEIGHTS)
    return isinstance(value, Instance) and is_module(analysis, value)
