"""The functions and the objects of the project that a call or a name is, in a model that is wrapped too."""

from __future__ import annotations

import ast

from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction, Result
from retrofit.training.torch_api.modules import WRAPPERS

from .flow import functions_run

MOST_WRAPPERS = 4  # around each other


def functions_inside(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is, `forward` for one of a model."""
    found = functions_run(analysis, node, scope)
    if found:
        return found
    objects = objects_inside(analysis, node.func, scope)
    return [m for part in objects if (m := analysis.classes.method(part.scope, "forward")) is not None]


def objects_inside(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_WRAPPERS) -> list[Instance]:
    """Return the objects of the project's own classes that are in a wrapper: `model`, `model.module`."""
    outer = node.value if isinstance(node, ast.Attribute) and node.attr == "module" else node
    found: list[Instance] = []
    for value in analysis.evaluate(outer, scope):
        if not isinstance(value, Result) or value.builder not in WRAPPERS:
            continue
        for given in value.call.args[:2]:  # of rd.model.data_parallel(nn.DataParallel, model) the second
            inner = analysis.evaluate(given, value.scope)
            found += [part for part in inner if isinstance(part, Instance)]
            found += objects_inside(analysis, given, value.scope, depth - 1) if depth else []
    return list(dict.fromkeys(found))
