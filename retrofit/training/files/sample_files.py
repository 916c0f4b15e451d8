"""Files that each process names by the samples of its own share of the data: a prediction per image."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import given_parameters
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.files import PATH_POSITIONS
from retrofit.training.torch_api.runtime import EVALUATION_SHARES

from ..data.loaders import is_split, loaders_in
from ..evaluation.measurements import spread
from .outputs import Output


def is_named_by_sample(analysis: Analysis, output: Output) -> bool:
    """Return whether an output goes to a file whose name comes from a batch of a sharded loader."""
    position = PATH_POSITIONS.get(output.name, 0)
    if len(output.call.args) <= position:
        return False
    return _comes_from_batch(analysis, output.call.args[position], output.scope)


def _comes_from_batch(analysis: Analysis, path: ast.expr, scope: Scope) -> bool:
    """Return whether a path has a part of a batch in it, here or in what every call gives."""
    memory: Memory[bool] = analysis.fact("paths of samples", lambda: Memory(False))
    return memory.once((path, scope), lambda: _is_of_batch(analysis, path, scope))


def _is_of_batch(analysis: Analysis, path: ast.expr, scope: Scope) -> bool:
    names = {part.id for part in ast.walk(path) if isinstance(part, ast.Name)}
    for outer in scope.source.ancestors(path):
        if outer is scope.node:
            break
        if isinstance(outer, ast.For) and _is_over_share(analysis, outer, scope):
            drawn = {part.id for part in ast.walk(outer.target) if isinstance(part, ast.Name)}
            if names & spread(scope, drawn).names:
                return True
    if not isinstance(scope.node, FUNCTIONS):
        return False
    bound = given_parameters(scope)
    if getattr(scope.node, "name", "") == "__getitem__" and names & spread(scope, set(bound)).names:
        return True
    given = [arguments_for(analysis, name, scope) for name in bound if name in names]
    return any(
        sites and all(a is not None and _comes_from_batch(analysis, a, where) for a, where in sites) for sites in given
    )


def _is_over_share(analysis: Analysis, loop: ast.For, scope: Scope) -> bool:
    if any(is_split(analysis, loader, scope) for loader in loaders_in(analysis, loop.iter, scope)):
        return True
    parts = (part for part in ast.walk(loop.iter) if isinstance(part, (ast.Name, ast.Call)))
    values = (value for part in parts for value in analysis.evaluate(part, scope))
    return any(isinstance(value, Result) and value.builder in EVALUATION_SHARES for value in values)
