"""The functions of the project that a call runs, in a model that is wrapped too."""

from __future__ import annotations

import ast

from retrofit.project.analysis import Analysis
from retrofit.project.loss_flow import functions_run
from retrofit.project.scopes import Scope
from retrofit.project.values import Instance, LocalFunction, Result

WRAPPERS = {
    "torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.DistributedDataParallel",
    "torch.compile", "retrofit.distributed.distribute_model",
}  # fmt: skip


def functions_inside(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is, `forward` for one of a model."""
    found = functions_run(analysis, node, scope)
    for value in analysis.evaluate(node.func, scope) if not found else ():
        if isinstance(value, Result) and value.maker in WRAPPERS and value.call.args:
            inner = analysis.evaluate(value.call.args[0], value.scope)
            scopes = [part.scope for part in inner if isinstance(part, Instance)]
            found += [m for scope in scopes if (m := analysis.classes.method(scope, "forward")) is not None]
    return found
