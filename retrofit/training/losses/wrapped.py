"""The functions and the objects of the project that a call or a name is, in a wrapper and in a list of modules too."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.sources import Origin, closure, functions_run, origins
from retrofit.analysis.memory import answered_once
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Item, LocalFunction, Result, Value
from retrofit.training.torch_api.modules import MODULE_CONTAINERS, WRAPPERS


@answered_once
def functions_inside(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is, `forward` for one of a model."""
    found = functions_run(analysis, node, scope)
    if found:
        return found
    return _forward_of(analysis, values_inside(analysis, node.func, scope)) or _forward_of(
        analysis, values_in_lists(analysis, node.func, scope)
    )


def functions_run_inside(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project that a call runs by way of a wrapper, a list of modules or a Sequential."""
    values = analysis.evaluate(node.func, scope)
    if not any(isinstance(value, (Item, Result)) for value in values):
        return []
    is_sequence = any(isinstance(value, Result) and value.builder in MODULE_CONTAINERS for value in values)
    inside = _held(analysis, Origin(node.func, scope, (None,))) if is_sequence else []
    return functions_inside(analysis, node, scope) or _forward_of(analysis, inside)


def _forward_of(analysis: Analysis, values: list[Value]) -> list[LocalFunction]:
    objects = [value for value in values if isinstance(value, Instance)]
    return [m for part in objects if (m := analysis.classes.method(part.scope, "forward")) is not None]


def objects_inside(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Instance]:
    """Return the objects of the project's own classes that are in a wrapper: `model`, `model.module`."""
    return [value for value in values_inside(analysis, node, scope) if isinstance(value, Instance)]


def values_inside(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Value]:
    """Return what is in a wrapper: `model`, `model.module`."""
    outer = node.value if isinstance(node, ast.Attribute) and node.attr == "module" else node

    def inside(value: Value) -> list[Value]:
        if not isinstance(value, Result) or value.builder not in WRAPPERS:
            return []
        given = value.call.args[:2]  # of rd.model.data_parallel(nn.DataParallel, model) the second
        return [inner for part in given for inner in analysis.evaluate(part, value.scope)]

    held = [value for outermost in analysis.evaluate(outer, scope) for value in inside(outermost)]
    return list(closure(held, inside))


def values_in_lists(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Value]:
    """Return what one of a list or a dict of modules can be."""
    bases = [value.base for value in analysis.evaluate(node, scope) if isinstance(value, Item)]
    is_filled = isinstance(node, ast.Subscript)  # criteria.append(Criterion()), criteria[0](output)
    if not is_filled and not any(isinstance(base, Result) and base.builder in MODULE_CONTAINERS for base in bases):
        return []
    return _held(analysis, Origin(node, scope))


def _held(analysis: Analysis, start: Origin) -> list[Value]:
    """Return what modules an expression can be, also out of what is put into a container of modules."""

    def held(origin: Origin) -> list[Origin] | None:
        part = origin.node
        names = analysis.called(part, origin.scope) & MODULE_CONTAINERS if isinstance(part, ast.Call) else frozenset()
        if not isinstance(part, ast.Call) or not names:
            return None
        is_display = all(name.endswith("Sequential") for name in names)  # Sequential(first, second)
        return [
            origin.to(given, keys=origin.keys[is_display and not isinstance(given, ast.Starred) :])
            for given in part.args
        ]

    made = [o for o in origins(analysis, [start], held) if isinstance(o.node, ast.Call) and not o.keys]
    return list(dict.fromkeys(value for o in made for value in analysis.evaluate(o.node, o.scope)))  # type: ignore[arg-type]
