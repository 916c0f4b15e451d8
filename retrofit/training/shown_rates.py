"""Where a function shows a learning rate that it sets by hand: the rate that is used is another one by then."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retrofit.project.scopes import Scope, own_nodes
from retrofit.training.evaluation.sinks import LOGGED, PRINTED, SAVED, Sinks

if TYPE_CHECKING:
    from retrofit.project import Project


def shown_rates(project: Project, rates: Iterable[tuple[ast.expr, Scope]]) -> Iterator[tuple[ast.Name, Scope]]:
    """Yield the names of rates where they are printed, logged or saved, in the function that sets `rates`."""
    names: dict[Scope, set[str]] = {}
    for rate, scope in rates:
        if isinstance(rate, ast.Name):
            names.setdefault(scope, set()).add(rate.id)
    sinks = Sinks(project.analysis, project.outputs) if names else None
    for scope, known in names.items():
        assert sinks is not None
        for call in own_nodes(scope.node):
            if not isinstance(call, ast.Call):
                continue
            is_discarded = isinstance(scope.source.parents.get(call), ast.Expr)
            if sinks.of(call, scope, is_discarded) in (PRINTED, LOGGED, SAVED):
                yield from ((name, scope) for name in _read(call, known) if scope.source.segment(name) == name.id)


def _read(call: ast.Call, names: set[str]) -> Iterator[ast.Name]:
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in ast.walk(given):
            if isinstance(part, ast.Name) and part.id in names:
                yield part
