"""RF401 metric-per-rank: the loss that is shown is that of one process's share of the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import surround
from retrofit.project.guards import is_guarded
from retrofit.project.occurrences import stored_names
from retrofit.project.scopes import own_nodes
from retrofit.project.training import LOOPS, Frame

from .finding import Finding, found
from .sum_loss import is_summed

CODE = "RF401"
NAME = "metric-per-rank"
WHY = "Each process knows the loss of its own share only: what is printed, or decides, is not that of the whole batch."
HELP = "rd.reduce_loss(loss).item(), on every process"
BAD = """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    total += loss.item()
"""
GOOD = """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    total += rd.reduce_loss(loss).item()
"""


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    for path in project.paths:
        frame = path.frames[0]
        call = frame.node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if is_summed(project, call, frame.scope):
            continue
        for node in _readings(_loss_names(call.func.value), frame):
            source = frame.scope.source
            if node in seen or is_guarded(source, node) or "get_world_size" in source.segment(source.statement(node)):
                continue  # shown by one process on purpose, or a share that is added up
            seen.add(node)
            edits = surround(source, node, "rd.reduce_loss(", ")")
            yield found(CODE, source, node, "this is the loss of one process's share", HELP, edits)


def _loss_names(node: ast.expr) -> set[str]:
    """Return the loss in `loss.backward()` and `scaler.scale(loss).backward()`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _loss_names(node.args[0])
    return set()


def _readings(names: set[str], frame: Frame) -> Iterator[ast.Name]:
    """Yield the names in `loss.item()` that stand in a loop around the backward call, or in one within it."""
    for node in own_nodes(frame.scope.node):
        if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Attribute):
            continue
        value = node.func.value
        if node.func.attr != "item" or not isinstance(value, ast.Name) or value.id not in names:
            continue
        if _is_of_training(value, frame):
            yield value


def _is_of_training(name: ast.Name, frame: Frame) -> bool:
    """Return whether a loss is that of the training: not one that another loop, an evaluation, computes itself."""
    for outer in frame.scope.source.ancestors(name):
        if outer in frame.loops:
            return True
        if isinstance(outer, LOOPS) and name.id in stored_names([outer]):
            return False
    return False
