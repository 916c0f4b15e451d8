"""Copies of a model that are trained in its place: an optimizer has the parameters of copy.deepcopy(model)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.modules import COPIES

from ...optimizer.optimizers import Optimizer, parameter_owners
from ..models import Model


def trained_copies(
    analysis: Analysis, optimizers: list[Optimizer], models: list[Model]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that copy one of the models, where an optimizer has the copy, and no variable of the models."""
    trained = {model.variable for model in models}
    copied = trained | {variable for model in trained for variable in upstream(analysis, model)}
    for optimizer in optimizers:
        for node, scope in parameter_owners(analysis, optimizer):
            for call, where in _copies(analysis, node, scope, trained):
                if any(variables_of(analysis, given, where) & copied for given in call.args[:1]):
                    yield call, where


def _copies(
    analysis: Analysis, node: ast.expr, scope: Scope, trained: set[Variable]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the copies that an expression has its value from, but for those that a variable of `trained` holds."""

    def through(origin: Origin) -> Iterable[Origin] | None:
        part = origin.node
        if isinstance(part, ast.Call) and analysis.called(part, origin.scope) & COPIES:
            return ()
        return () if isinstance(part, ast.expr) and _is_held(part, origin.scope) else None

    def _is_held(part: ast.expr, where: Scope) -> bool:
        is_name = isinstance(part, (ast.Name, ast.Attribute))
        return is_name and bool(variables_of(analysis, part, where) & trained)

    for origin in origins(analysis, [Origin(node, scope)], through):
        if isinstance(origin.node, ast.Call) and analysis.called(origin.node, origin.scope) & COPIES:
            yield origin.node, origin.scope
