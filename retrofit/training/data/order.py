"""Detect loaders that draw their samples in a random order, also those that a helper creates in several ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import CallSite
from retrofit.analysis.flow.variables import assignments_to
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, Result
from retrofit.training.torch_api.data import SAMPLERS_IN_ORDER

from ..loops import Frame, is_ruled_out, truth_in_call
from .loaders import Loader
from .shards import builders_of, given_to, sampler_values


def is_random(analysis: Analysis, loader: Loader) -> bool:
    """Return whether a loader can draw its samples in a random order."""
    for builder, scope in builders_of(analysis, loader):
        sites = list(_calls_for(analysis, loader, scope))
        possible = [site for site in sites if not is_ruled_out(Frame(scope, builder, ()), site)]
        if possible or not sites:
            options = [*_options(analysis, builder, scope)]
            if any(_is_true(analysis, node, scope, possible) for node in options) or _samples(analysis, builder, scope):
                return True
    return False


def _calls_for(analysis: Analysis, loader: Loader, scope: Scope) -> Iterator[CallSite]:
    """Yield the calls of a helper that make just this loader: `val_loader = get_loader("val")`."""
    if loader.variable is None or not isinstance(scope.node, FUNCTIONS):
        return
    given = [a.value for a in assignments_to(analysis, loader.variable) if a.value is not None]
    inside = {part for value in given for part in ast.walk(value)}
    yield from (site for site in analysis.callers(scope.node) if site.call in inside)


def _options(analysis: Analysis, builder: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a call of DataLoader gives for `shuffle`, also in `**options`."""
    given = given_to(builder, "shuffle")
    if given is not None:
        yield given
    for keyword in builder.keywords:
        for value in analysis.evaluate(keyword.value, scope) if keyword.arg is None else ():
            if isinstance(value, Display) and isinstance(value.node, ast.Dict):
                pairs = zip(value.node.keys, value.node.values)
                yield from (v for key, v in pairs if isinstance(key, ast.Constant) and key.value == "shuffle")


def _is_true(analysis: Analysis, node: ast.expr, scope: Scope, sites: list[CallSite]) -> bool:
    """Return whether an option can be true in these calls of its function."""
    truths = {truth_in_call(scope, site, node) for site in sites}
    if truths and None not in truths:
        return True in truths
    values = analysis.evaluate(node, scope)
    constants = [v.node for v in values if isinstance(v, Display) and isinstance(v.node, ast.Constant)]
    return not values or len(constants) < len(values) or any(constant.value for constant in constants)


def _samples(analysis: Analysis, builder: ast.Call, scope: Scope) -> bool:
    """Return whether a loader has a sampler that can draw at random."""
    values = [v for v in sampler_values(analysis, builder, scope) if isinstance(v, (Result, Instance))]
    return any(not isinstance(value, Result) or not value.builder.endswith(SAMPLERS_IN_ORDER) for value in values)
