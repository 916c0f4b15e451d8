"""Ends of the loops of a training: by a number, by the length of a loader, or none."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope

from ..data.batches import repeats
from ..data.drawn import is_loader

if TYPE_CHECKING:
    from .. import Project


def range_end(project: Project, iterated: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the end of range(...), also within tqdm(...), enumerate(...) and zip(...), or of islice(endless, end)."""
    if isinstance(iterated, ast.Name):  # bar = tqdm(range(steps))
        held = bindings_of(project.analysis, iterated, scope)
        is_made = len(held) == 1 and isinstance(held[0][0].value, ast.Call) and not held[0][0].path
        return range_end(project, held[0][0].value, held[0][1]) if is_made and held[0][1] is scope else None  # type: ignore[arg-type]
    if not isinstance(iterated, ast.Call):
        return None
    name = last_name(iterated)
    if name in ("range", "trange") and iterated.args:
        return iterated.args[1 if len(iterated.args) > 1 else 0]
    if name == "islice" and len(iterated.args) > 1:
        return iterated.args[1] if is_endless(project, iterated.args[0], scope) else None
    inner = (range_end(project, part, scope) for part in iterated.args)
    return next((end for end in inner if end is not None), None)


def is_endless(project: Project, iterated: ast.expr, scope: Scope) -> bool:
    """Return whether something that is iterated never ends: cycle(loader), a generator with `while True`."""
    calls = [part for part in walk(iterated) if isinstance(part, ast.Call)]
    for part, where in project.ranks.origins(iterated, scope):
        calls += [part] if isinstance(part, ast.Call) and where is scope else []
    return any(repeats(project.analysis, call, scope) for call in calls)


def has_loader_length(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a number is computed from the length of a loader."""
    return any(
        isinstance(part, ast.Call)
        and last_name(part) == "len"
        and part.args
        and _is_loader(project, part.args[0], where)
        for expression, where in project.ranks.origins(node, scope)
        for part in walk(expression)
    )


def _is_loader(project: Project, node: ast.expr, scope: Scope) -> bool:
    values = project.analysis.evaluate(node, scope)
    return any(is_loader(project.analysis, value) for value in values) or "loader" in last_name(node).lower()
