"""Gradients of parameters that a training takes by itself, past backward(): those of inner steps, for one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.operands import operands
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.training.evaluation.measurements import Known, name_in, spread, users
from retrofit.training.model.modules import is_layer, is_module
from retrofit.training.torch_api.modules import (
    GRADIENT_FUNCTIONS,
    GRADIENT_TRANSFORMS,
    INNER_LOOPS,
    PARAMETER_CLASSES,
    PARAMETERS,
    PARAMETERS_OF_LAYERS,
)

SELECTING = frozenset(
    {"filter", "map", "itertools.chain", "sorted", "dict", "list", "tuple"}
)  # functions of lists of parameters
COMPREHENSIONS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Delete, ast.Raise, ast.Assert)


def parameter_gradients(
    analysis: Analysis, nodes: Iterable[tuple[ast.AST, Scope]], shown: Collection[ast.AST]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls among nodes that compute gradients of parameters, but for those that are `shown` only."""
    for node, scope in nodes:
        derives = isinstance(node, ast.Call) and _derives(analysis, node, scope)
        if derives and not _is_only_shown(analysis, node, scope, shown):  # type: ignore[arg-type]
            yield node, scope  # type: ignore[misc]


def _derives(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    names = analysis.called(call, scope)
    if names & INNER_LOOPS:
        return True
    given: list[ast.expr] = []
    if names & GRADIENT_FUNCTIONS:
        inputs = argument_for(call, ["outputs", "inputs"], "inputs")
        given = [inputs] if inputs is not None else []
    elif any(isinstance(v, Result) and v.builder in GRADIENT_TRANSFORMS for v in analysis.evaluate(call.func, scope)):
        given = call.args
    return any(are_parameters(analysis, node, scope) for node in given)


def are_parameters(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a value is, or lists, parameters of a model: not what a model makes of them."""
    parts = origins(analysis, [Origin(node, scope)], partial(_listed, analysis))
    return any(_is_of_model(analysis, part.node, part.scope) for part in parts)


def _listed(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    """Return what a list of parameters is made of, one step before; () for what a layer computes."""
    node, scope = origin.node, origin.scope
    if isinstance(node, COMPREHENSIONS):
        return [origin.to(part, keys=()) for part in operands(node)]
    if isinstance(node, ast.BinOp):
        lists = [part for part in (node.left, node.right) if isinstance(part, (ast.Call, ast.List, ast.BinOp))]
        return [origin.to(part, keys=()) for part in lists if isinstance(node.op, ast.Add)]
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in {"values", "items", *PARAMETERS}:
        return [origin.to(node.func.value, keys=())] if node.func.attr not in PARAMETERS else []
    if analysis.called(node, scope) & SELECTING:
        return [origin.to(part, keys=()) for part in node.args]
    is_run = any(isinstance(v, Instance) or is_layer(analysis, v) for v in analysis.evaluate(node.func, scope))
    return () if is_run else None


def _is_of_model(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in PARAMETERS_OF_LAYERS:
        layer = node.value
        while isinstance(layer, ast.Subscript):
            layer = layer.value
        return any(is_layer(analysis, value) for value in analysis.evaluate(layer, scope))
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in PARAMETERS:
        return True
    owner = scope.parent
    is_in_model = owner is not None and isinstance(owner.node, ast.ClassDef) and is_module(analysis, Instance(owner))
    return is_in_model and bool(analysis.called(node, scope) & PARAMETER_CLASSES)


def _is_only_shown(analysis: Analysis, call: ast.Call, scope: Scope, shown: Collection[ast.AST]) -> bool:
    """Return whether nothing but output gets what is computed from a call."""
    statement = scope.source.statement(call)
    if isinstance(statement, ast.Expr):
        return any(node in shown for node in walk(statement))
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {name_in(part) for target in targets for part in walk(target)} - {""}
    known = list(users(analysis, scope, names)) if names else []
    return bool(known) and all(_shows(_with_loops(part), shown) for part in known)


def _with_loops(known: Known) -> Known:
    """Return the names with those of loops over the values, and of what is computed from these."""
    loops = [node for node in own_nodes(known.scope.node).of(ast.For) if known.holds(node.iter)]
    more = {name_in(part) for loop in loops for part in walk(loop.target)} - {""}
    return spread(known.scope, known.names | more)


def _shows(known: Known, shown: Collection[ast.AST]) -> bool:
    for node in own_nodes(known.scope.node):
        if isinstance(node, (ast.If, ast.While)) and known.holds(node.test):
            return False
        if not isinstance(node, SIMPLE) or not known.holds(node):
            continue
        if isinstance(node, ast.Assign):
            parts = [part for target in node.targets for part in walk(target)]
        else:
            parts = [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        if any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in parts):
            return False
        if isinstance(node, ast.Expr) and not any(part in shown for part in walk(node)):
            return False
    return True
