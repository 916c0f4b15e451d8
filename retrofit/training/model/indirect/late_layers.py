"""Layers with weights that a model makes for itself when it runs: its wrapper has been made without them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.training.torch_api.modules import SETS_ATTRIBUTE

from ..modules import is_module

if TYPE_CHECKING:
    from ... import Project

WITH_WEIGHTS = re.compile(
    r"Linear|Conv|Norm|Embedding|RNN|LSTM|GRU|Attention|Transformer|Sequential|Module(List|Dict)|PReLU|Parameter"
)
GROWS = frozenset({"append", "extend", "insert"})


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
        elif name in GROWS and node.args and _is_of(holder, own):
            yield node.args[-1]


def _is_of(node: ast.expr, own: str) -> bool:
    return isinstance(node, ast.Attribute) and _is_named(node.value, own)


def _is_named(node: ast.expr, own: str) -> bool:
    return isinstance(node, ast.Name) and node.id == own


def _is_made_here(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a layer with weights that the same function makes."""
    own = set(own_nodes(scope.node))
    for value in analysis.evaluate(node, scope):
        if isinstance(value, Instance) and value.call in own and is_module(analysis, value):
            return True
        if isinstance(value, Result) and value.call in own and value.builder.startswith("torch.nn."):
            return WITH_WEIGHTS.search(value.builder.rpartition(".")[2]) is not None
    return False
