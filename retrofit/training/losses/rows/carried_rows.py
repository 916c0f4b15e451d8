"""States of a model that have a row for each sample of the batch: a rank that keeps its rows carries its own states."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.loops import LoopNode
from retrofit.training.torch_api.tensors import SAME_TENSOR

from ..reductions.kinds import ROWS
from ..reductions.reduction import reader_of

if TYPE_CHECKING:
    from retrofit.training import Project

# What cuts a state off its history, or puts its parts together again.
SAME_ROWS = SAME_TENSOR | {"detach", "detach_", "requires_grad_"}
WITHOUT_HISTORY = SAME_ROWS | {"tuple", "list", "isinstance", "type", "Variable", "len", "is_tensor"}


def carried_rows(project: Project, name: str, loop: LoopNode, scope: Scope) -> list[ast.expr] | None:
    """Return the batch sizes for which a state begins that a training loop carries, if it has a row for each sample.

    Each row is computed from its own sample, and no test is about how many there are; None for other states.
    """
    values = list(_values(name, loop))
    bound = [b for b in scope.bindings.get(name, []) if loop in scope.source.ancestors(b.node)]
    if len(bound) != len(values) or _is_changed(name, loop) or not any(_is_of_model(project, v) for v, _ in values):
        return None
    compared = (part for part in walk(loop) if isinstance(part, ast.Compare) and not _is_of_none(part))
    if any(isinstance(part, ast.Name) and part.id == name for test in compared for part in walk(test)):
        return None
    starts = [b.value for b in scope.bindings.get(name, []) if b not in bound]
    starts += [value for value, _ in values if not _is_kept(project, name, value, scope)]
    if not all(start is not None and _is_beginning(project, start, scope) for start in starts):
        return None
    if not all(_has_rows(project, *value, scope) for value in values if _is_of_model(project, value[0])):
        return None
    sizes = [part for start in starts if start is not None for part in walk(start)]
    return [part for part in sizes if isinstance(part, ast.expr) and (part, scope) in project.batch_sizes]


def sizes_of_states(project: Project) -> Iterator[ast.expr]:
    """Yield the batch sizes for which the states begin that the training loops give to a model and get from it."""
    for loop, frame in (path.loops[0] for path in project.paths):
        for node in walk(loop):
            if not isinstance(node, ast.Assign) or not _is_of_model(project, node.value):
                continue
            given = {part.id for part in walk(node.value) if isinstance(part, ast.Name)}
            names = {part.id for target in node.targets for part in walk(target) if isinstance(part, ast.Name)}
            for name in names & given:
                yield from carried_rows(project, name, loop, frame.scope) or ()


def _values(name: str, loop: LoopNode) -> Iterator[tuple[ast.expr, tuple[int, ...]]]:
    """Yield what a loop gives a variable, with the place of it there: (1,) of `output, state = model(x, state)`."""
    for node in walk(loop):
        if isinstance(node, ast.Assign):
            found = ((node.value, place) for target in node.targets for place in _places(name, target))
            yield from (_part(*each) for each in found)


def _is_changed(name: str, loop: LoopNode) -> bool:
    """Return whether a loop changes a state in its place: `state[done] = 0`, states.append(state)."""
    for node in walk(loop):
        owner: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            owner = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in SAME_ROWS:
            owner = node.func.value
        owner = node.target if isinstance(node, ast.AugAssign) else owner
        while isinstance(owner, (ast.Subscript, ast.Attribute)):
            owner = owner.value
        if isinstance(owner, ast.Name) and owner.id == name:
            return True
    return False


def _part(value: ast.expr, place: tuple[int, ...]) -> tuple[ast.expr, tuple[int, ...]]:
    """Return a part of a tuple that is written out: `h, c = h.detach(), c.detach()`."""
    while place and isinstance(value, (ast.Tuple, ast.List)) and place[0] < len(value.elts):
        value, place = value.elts[place[0]], place[1:]
    return value, place


def _places(name: str, target: ast.expr) -> Iterator[tuple[int, ...]]:
    if isinstance(target, ast.Name) and target.id == name:
        yield ()
    elif isinstance(target, (ast.Tuple, ast.List)):
        for number, part in enumerate(target.elts):
            yield from ((number, *place) for place in _places(name, part))


def _is_of_none(test: ast.Compare) -> bool:
    return all(isinstance(part, ast.Constant) and part.value is None for part in test.comparators)


def _is_of_model(project: Project, value: ast.expr) -> bool:
    return any(call.call is value for model in project.models for call in model.calls)


def _has_rows(project: Project, value: ast.expr, place: tuple[int, ...], scope: Scope) -> bool:
    """Return whether a part of what a model returns has a row for each sample, with nothing of the others in it."""
    kind = reader_of(project).kind(value, scope, None, place)
    return bool(place) and kind.parts == {ROWS} and not (kind.leaves or kind.unclear)


def _is_kept(project: Project, name: str, value: ast.expr, scope: Scope) -> bool:
    """Return whether a state continues: it is what a model returns, or is only cut off its history."""
    if _is_of_model(project, value):
        return True
    calls = [part for part in walk(value) if isinstance(part, ast.Call)]
    inner = [place for call in calls for place in calls_within(project.analysis, call, scope)]
    run = [call for call, where in inner if not project.analysis.functions_called(call, where)]
    is_plain = not any(isinstance(part, (ast.BinOp, ast.Subscript)) for part in walk(value))
    is_own = any(isinstance(part, ast.Name) and part.id == name for part in walk(value))
    return is_plain and is_own and bool(calls) and all(last_name(call) in WITHOUT_HISTORY for call in run)


def _is_beginning(project: Project, value: ast.expr, scope: Scope) -> bool:
    """Return whether a state is none, or is made for the batch size."""
    if isinstance(value, ast.Constant) and value.value is None:
        return True
    if isinstance(value, (ast.Tuple, ast.List)):
        return all(_is_beginning(project, part, scope) for part in value.elts)
    calls = [part for part in walk(value) if isinstance(part, ast.Call)]
    return bool(calls) and any((part, scope) in project.batch_sizes for part in walk(value))
