"""Random numbers that an evaluation draws: of the ranks that run all of it, each would draw others."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.training.torch_api.modules import DROPOUT, DROPOUT_FUNCTIONS, TRAINING_MODES, WITH_DROPOUT
from retrofit.training.torch_api.randomness import DRAWS_IN_PLACE

from ..data.seeds import draws
from ..model.layers import builders
from ..model.modules import only_in_training
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
        if _is_draw(analysis, *place) and not (is_off and only_in_training(*place, _is_mode)):
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
    return not is_off or not _is_mode(training)


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


def _is_mode(test: ast.expr) -> bool:
    """Return whether a test is of the mode of a model, by its name: `self.training`, `is_train`."""
    return isinstance(test, (ast.Name, ast.Attribute)) and last_name(test) in TRAINING_MODES
