"""Methods and parts of models of libraries: `flow.log_prob(x)`, `clip.encode_image(x)`, `net.features(x)`.

Whether such a method runs the model cannot be read; it does where a loss is computed from what it gives.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.nodes import Places
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, LocalClass, LocalFunction, Result
from retrofit.training.torch_api.launch import HOLDS_ATTRIBUTES
from retrofit.training.torch_api.modules import CHILDREN, MODULE_CONTAINERS, MODULES, RUNS_NOTHING

from ...loops import Path
from ..containers import held_in

NO_RUNS = RUNS_NOTHING | CHILDREN | MODULES  # methods
OF_PROJECT = (Instance, LocalClass, LocalFunction)
Run = tuple[ast.Call, Scope, str, ast.expr]  # with the name of what is run, and the expression of the model


def library_calls(
    analysis: Analysis, nodes: Places[Scope], paths: list[Path], is_trained: Callable[[Variable], bool]
) -> list[Run]:
    """Return those of some nodes by which a loss is computed with a method, or a part, of a model in training."""
    found = [run for node, scope in nodes.of(ast.Call) for run in runs_of(analysis, node, scope)]
    found = [run for run in found if any(map(is_trained, held_in(analysis, run[3], run[1])[0]))]
    computing = losses_computed_from(analysis, paths) if found else set()
    return [run for run in found if run[0] in computing]


def losses_computed_from(analysis: Analysis, paths: list[Path]) -> set[ast.AST]:
    """Return all expressions that the losses of a training are computed from."""

    def compute() -> set[ast.AST]:
        calls = {path.frames[0].node: path.frames[0].scope for path in paths}
        places = [(c.func.value, s) for c, s in calls.items() if isinstance(c, ast.Call) and _is_method(c)]  # type: ignore[attr-defined]
        return {origin.node for place in places for origin in computed_from(analysis, *place, stored=True)}

    return analysis.fact("what losses are computed from", compute)


def runs_of(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[Run]:
    """Yield what a call may run of a model of a library, if it calls a method, or a part, of one."""
    if not _is_method(call) or any(isinstance(value, OF_PROJECT) for value in analysis.evaluate(call.func, scope)):
        return
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr not in NO_RUNS and not _is_container(analysis, call.func.value, scope):
        yield call, scope, call.func.attr, call.func.value


def _is_container(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an object holds models: `nets` of nets.items() and, with attributes for entries, of nets.first."""
    holders = MODULE_CONTAINERS | HOLDS_ATTRIBUTES
    values = analysis.evaluate(node, scope)
    return any(isinstance(v, Display) or (isinstance(v, Result) and v.builder in holders) for v in values)


def _is_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute)
