"""Branches of a training loop that do not train: `if step % 100 == 0:` a look at a batch of the test set."""

from __future__ import annotations

import ast

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.branches import branches_around
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.nodes import walk


def is_aside(source: Source, node: ast.AST, loop: ast.stmt) -> bool:
    """Return whether `node` is in a branch of a loop that trains nothing and leaves the rest nothing to use."""
    start = source.statement(node)
    return any(_is_apart(loop, branch, start) for branch in branches_around(source, node, loop))


def trains(block: list[ast.stmt]) -> bool:
    """Return whether statements compute gradients themselves."""
    calls = (part for statement in block for part in walk(statement) if isinstance(part, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in calls)


def _is_apart(loop: ast.stmt, branch: list[ast.stmt], start: ast.stmt) -> bool:
    own = _made_from(branch, start)
    inside = {part for statement in branch for part in walk(statement)}
    if trains(branch):
        return False
    targets = stored_names([loop.target]) if isinstance(loop, ast.For) else set()
    names = [part for part in walk(loop) if isinstance(part, ast.Name) and part.id in own and part not in inside]
    last = branch[-1].end_lineno or branch[-1].lineno
    for name in names:
        if isinstance(name.ctx, ast.Load) and (name.lineno > last or not _is_set_before(names, name, targets)):
            return False
    return True


def _made_from(branch: list[ast.stmt], start: ast.stmt) -> set[str]:
    """Return the names that hold what `start` sets, or what a branch computes from that."""
    own = stored_names([start])
    for statement in branch:
        for part in walk(statement):
            if isinstance(part, (ast.Assign, ast.AugAssign, ast.For)) and loaded_names([part]) & own:
                own |= stored_names([part])
    return own


def _is_set_before(names: list[ast.Name], name: ast.Name, targets: set[str]) -> bool:
    """Return whether the loop sets a name again, on a line of its own, before it reads it."""
    if name.id in targets:
        return True
    stores = [other.lineno for other in names if other.id == name.id and isinstance(other.ctx, ast.Store)]
    return bool(stores) and min(stores) < name.lineno
