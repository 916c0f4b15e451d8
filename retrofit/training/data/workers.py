"""Functions that not every process runs in the same way: for a sample, in a worker, or by what they are passed to."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.data import PER_SAMPLE

from ..loops import reached_paths


def run_elsewhere(analysis: Analysis) -> set[Scope]:
    """Return the functions in which the processes must not wait for one another, with all that they call."""
    training = {frame.scope for path in reached_paths(analysis) for frame in path.frames}
    return analysis.fact("run elsewhere", lambda: _with_called(analysis, _run_by_others(analysis) - training))


def _run_by_others(analysis: Analysis) -> set[Scope]:
    found = {scope for scope in analysis.scopes() if getattr(scope.node, "name", "") in PER_SAMPLE}
    for node, scope in reached_calls(analysis):
        given = [*node.args, *(k.value for k in node.keywords)]
        named = [part for part in given if isinstance(part, (ast.Name, ast.Attribute, ast.Lambda))]
        values = [value for part in named for value in analysis.evaluate(part, scope)]
        found |= {value.scope for value in values if isinstance(value, LocalFunction)}
    return found


def _with_called(analysis: Analysis, functions: set[Scope]) -> set[Scope]:
    """Return functions with all that they call."""
    calls = [(node, scope) for scope in functions for node in own_nodes(scope.node).of(ast.Call)]
    return functions | {function.scope for function in functions_reached(analysis, calls)}
