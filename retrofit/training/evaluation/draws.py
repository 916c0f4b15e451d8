"""Random numbers that an evaluation draws: of the ranks that run all of it, each would draw others."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.training.torch_api.modules import DROPOUT, DROPOUT_FUNCTIONS, TRAINING_MODES, WITH_DROPOUT
from retrofit.training.torch_api.randomness import DRAWS_IN_PLACE

from ..data.seeds import draws
from ..model.layers import builders
from .mode import is_in_evaluation_mode


def draws_in_evaluation(
    analysis: Analysis, evaluating: ast.AST, scope: Scope, runs_model: ast.AST | None = None
) -> bool:
    """Return whether a loop that evaluates draws from a common stream, itself or in what it calls, or by dropout.

    `runs_model`: the first place where it runs a model, of a function that evaluates.
    """
    is_off = is_in_evaluation_mode(analysis, runs_model or evaluating, scope)
    calls = [node for node in walk(evaluating) if isinstance(node, ast.Call)]
    for place in (place for call in calls for place in calls_within(analysis, call, scope)):
        if _is_draw(analysis, *place) and not (is_off and _is_of_training(*place)):
            return True
        if _drops(analysis, *place, is_off):
            return True
    return not is_off and any(_has_dropout(analysis, call, scope) for call in calls)


def _drops(analysis: Analysis, call: ast.Call, scope: Scope, is_off: bool) -> bool:
    """Return whether a call drops entries, also in evaluation mode: F.dropout(x), a layer made in the forward pass."""
    names = analysis.called(call, scope)
    rate = argument_for(call, ["p"] if names & DROPOUT else ["input", "p"], "p")
    if isinstance(rate, ast.Constant) and not rate.value:
        return False
    if names & DROPOUT:
        return getattr(scope.node, "name", "") != "__init__"
    if not names & DROPOUT_FUNCTIONS:
        return False
    training = argument_for(call, ["input", "p", "training"], "training")
    if training is None or isinstance(training, ast.Constant):
        return training is None or bool(training.value)
    name = training.attr if isinstance(training, ast.Attribute) else getattr(training, "id", "")
    return not is_off or name not in TRAINING_MODES


def _has_dropout(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a model that is called has layers that drop entries unless it is in evaluation mode."""
    values = analysis.evaluate(call.func, scope)
    is_object = any(isinstance(value, (Instance, Result)) for value in values)
    return is_object and not builders(analysis, call.func, scope).isdisjoint(DROPOUT | WITH_DROPOUT)


def _is_draw(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in DRAWS_IN_PLACE:
        return all(keyword.arg != "generator" for keyword in call.keywords)
    return draws(analysis, call, scope)


def _is_of_training(call: ast.Call, scope: Scope) -> bool:
    """Return whether tests of `training` leave a call out in evaluation mode, around it or by a return before it."""
    node: ast.AST = call
    parents = scope.source.parents
    while (parent := parents.get(node)) is not None and node is not scope.node:
        if isinstance(parent, (ast.If, ast.IfExp)) and node is not parent.test:
            is_in_body = node is parent.body or (isinstance(parent.body, list) and node in parent.body)
            if _needs_training(parent.test, is_in_body):
                return True
        node = parent
    earlier = (part for part in own_nodes(scope.node) if isinstance(part, ast.If) and place_of(part) < place_of(call))
    return any(isinstance(part.body[-1], ast.Return) and _needs_training(part.test, False) for part in earlier)


def _needs_training(test: ast.expr, value: bool) -> bool:
    """Return whether a test can have this value in training alone: `self.training and p > 0` if it is to be true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _needs_training(test.operand, not value)
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) == value and any(_needs_training(part, value) for part in test.values)
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return value and name in TRAINING_MODES
