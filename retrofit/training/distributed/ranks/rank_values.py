"""Expressions that are the rank, or the number of processes: asked for, passed on, or named so."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.bindings import arguments_for, bindings_of, builder_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Result, Value
from retrofit.training.torch_api.distributed import COMPUTING, RANK, WORLD_SIZE

from .rank_sources import asked_for, called_so

MOST_DEPTH = 6


def is_rank(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression is the number of the process, or tells it as `rank % num_gpus` does."""
    if depth == 0:
        return False
    if isinstance(node, ast.BinOp):
        return any(is_rank(analysis, part, scope, depth - 1) for part in (node.left, node.right))
    if isinstance(node, ast.Call) and analysis.called(node, scope) & {"int", "str"} and node.args:
        return is_rank(analysis, node.args[0], scope, depth - 1)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return False
    if asked_for(analysis, node, scope) == RANK:
        return True
    if isinstance(node, ast.Name) and analysis.spawned.gives_rank(scope, node.id):
        return True
    values = analysis.evaluate(node, scope)
    origins = [*_made_by(values, node), *_given_for(analysis, node, scope)]
    if any(is_rank(analysis, expression, where, depth - 1) for expression, where in origins):
        return True
    if called_so(node) != RANK or any(_is_something_else(value) for value in values):
        return False
    kinds = {binding.kind for binding, _ in bindings_of(analysis, node, scope)}
    return kinds != {"item"}  # the variable of a loop


def is_world_size(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression is the number of processes itself."""
    if depth == 0:
        return False
    if isinstance(node, ast.IfExp):
        return any(is_world_size(analysis, part, scope, depth - 1) for part in (node.body, node.orelse))
    if asked_for(analysis, node, scope) == WORLD_SIZE:
        return True
    if isinstance(node, ast.Call) and node.args and analysis.called(node, scope) & {"int", "float"}:
        return is_world_size(analysis, node.args[0], scope, depth - 1)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return False
    values = analysis.evaluate(node, scope)
    if any(is_world_size(analysis, expression, where, depth - 1) for expression, where in _made_by(values, node)):
        return True
    return called_so(node) == WORLD_SIZE and not any(builder_of(value) for value in values)


def _made_by(values: frozenset[Value], node: ast.expr) -> list[tuple[ast.expr, Scope]]:
    """Return the other expressions that the values of a node were made by."""
    builders = (builder_of(value) for value in values)
    return [builder for builder in builders if builder is not None and builder[0] is not node]


def _given_for(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the names that a parameter is given, or an attribute is set to: `rank` of `self.gpu = rank`."""
    found: list[tuple[ast.expr | None, Scope]] = []
    for binding, where in bindings_of(analysis, node, scope):
        if binding.kind == "parameter":
            found += arguments_for(analysis, binding.name, where)
        elif isinstance(node, ast.Attribute) and not binding.path:
            found.append((binding.value, where))
    return [(given, where) for given, where in found if isinstance(given, (ast.Name, ast.Attribute))]


def _is_something_else(value: Value) -> bool:
    """Return whether what is called a rank is known to be no process: the place of a hit, the counter of a loop."""
    return isinstance(value, Item) or (isinstance(value, Result) and value.builder.startswith(COMPUTING))
