"""Places that show a learning rate which is set by hand: the rate that is used is another one by then."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import FUNCTIONS, Scope

from ..figures.sinks import LOGGED, PRINTED, SAVED, Sinks

if TYPE_CHECKING:
    from .. import Project


def shown_rates(project: Project, rates: Iterable[tuple[ast.expr, Scope]]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield where `rates` are printed, logged or saved: by the function that sets them, or by one that it returns to.

    `rates`: the values that are set by hand. A call that computes such a value is shown as it is used as well.
    """
    names: dict[Scope, set[str]] = {}
    computing: set[ast.AST] = set()
    formulas: set[str] = set()
    for rate, scope in rates:
        if isinstance(rate, ast.Name):
            names.setdefault(scope, set()).add(rate.id)
            made = [binding.value for binding in scope.bindings.get(rate.id, [])]
            formulas |= {ast.dump(value) for value in made if isinstance(value, ast.BinOp)}
        elif isinstance(rate, ast.BinOp):
            formulas.add(ast.dump(rate))
        elif isinstance(rate, ast.Call):
            computing |= {function.node for function in project.analysis.functions_called(rate, scope)}
    _add_returned(project, names)
    sinks = Sinks(project.analysis, project.outputs) if names or computing or formulas else None
    for call, scope in reached_nodes(project.analysis) if sinks is not None else ():
        if not isinstance(call, ast.Call) or not (scope in names or computing or formulas):
            continue
        assert sinks is not None
        is_discarded = isinstance(scope.source.parents.get(call), ast.Expr)
        if sinks.of(call, scope, is_discarded) in (PRINTED, LOGGED, SAVED):
            for part in _read(project, call, scope, names.get(scope, set()), computing):
                if _is_written(part, scope):
                    yield part, scope
            for part in (inner for given in call.args for inner in ast.walk(given) if isinstance(inner, ast.BinOp)):
                if ast.dump(part) in formulas and _is_written(part, scope):
                    yield part, scope


def _is_written(node: ast.expr, scope: Scope) -> bool:
    """Return whether the text of an expression is where the parser says: not in a string of several lines."""
    try:
        text = ast.parse(scope.source.segment(node).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(text) == ast.dump(node)


def _add_returned(project: Project, names: dict[Scope, set[str]]) -> None:
    """Add the variables of other functions that hold a rate: `lr = adjust_rate(optimizer, epoch)`."""
    returning = {
        scope.node
        for scope, known in names.items()
        if isinstance(scope.node, FUNCTIONS) and any(getattr(v, "id", "") in known for v in returns_of(scope.node))
    }
    for scope in project.analysis.scopes() if returning else ():
        for name, bindings in scope.bindings.items():
            calls = [b.value for b in bindings if isinstance(b.value, ast.Call) and not b.path]
            functions = [f for call in calls for f in project.analysis.functions_called(call, scope)]
            if calls and len(calls) == len(bindings) and any(function.node in returning for function in functions):
                names.setdefault(scope, set()).add(name)


def _read(
    project: Project, call: ast.Call, scope: Scope, names: set[str], computing: set[ast.AST]
) -> Iterator[ast.expr]:
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in ast.walk(given):
            if isinstance(part, ast.Name) and part.id in names:
                yield part
            elif isinstance(part, ast.Call) and computing:
                functions = project.analysis.functions_called(part, scope)
                if any(function.node in computing for function in functions):
                    yield part
