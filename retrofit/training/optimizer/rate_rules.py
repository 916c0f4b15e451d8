"""Optimizers whose learning rates do not follow the batch: of losses that are sums over it, or without a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.files.source import Place
from retrofit.analysis.scopes import own_nodes
from retrofit.analysis.values.kinds import Instance, Result

from ..data.batch_values import BATCH
from ..loops import Path
from ..losses.reductions.kinds import SUM, WHOLE
from ..losses.reductions.reduction import backward_kind
from ..losses.terms import is_of_all
from .optimizers import Optimizer

if TYPE_CHECKING:
    from .. import Project


def summed_optimizers(project: Project) -> set[ast.Call]:
    """Return the calls that make optimizers of which a loss, or a term of one, is a sum over the batch.

    A batch of N ranks gives them a gradient N times as large.
    """
    return project.analysis.fact("summed optimizers", lambda: _find(project))


def unbatched_optimizers(project: Project) -> set[ast.Call]:
    """Return the calls that make optimizers which only step in loops that draw from no loader: of an image, say.

    Every rank takes the same steps there, however many there are.
    """
    return project.analysis.fact("unbatched optimizers", lambda: _find_unbatched(project))


def _find_unbatched(project: Project) -> set[ast.Call]:
    loops = project.batch_values.loops
    stepped: dict[bool, set[ast.Call]] = {True: set(), False: set()}
    for path in project.paths:
        draws = any(loop in loops for loop, _ in path.loops) or _uses_stored_batches(project, path)
        known = _stepped_after(project, path, project.optimizers)
        if not known:
            return set()
        stepped[draws] |= known
    return stepped[False] - stepped[True] if stepped[True] else set()


def _uses_stored_batches(project: Project, path: Path) -> bool:
    """Return whether a loss is computed from batches that another loop has put by, in a list or a buffer."""
    call = path.frames[0].node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    return BATCH in project.batch_values.sources_of(call.func.value, path.frames[0].scope, stored=True)


def _find(project: Project) -> set[ast.Call]:
    own = [optimizer.call for optimizer in project.optimizers]
    summed = [path for path in project.paths if is_summed(project, path)]
    if not summed or project.distribution.is_by_hand:
        return set()
    if len(summed) == len(project.paths):
        return set(own)
    found: set[ast.Call] = set()
    for path in summed:
        found |= _stepped_after(project, path, project.optimizers) or set(own)
    return found


def is_summed(project: Project, path: Path) -> bool:
    """Return whether the loss of a training, or a term of it, is a sum over the batch, which grows with it."""
    frame = path.frames[0]
    assert isinstance(frame.node, ast.Call)
    kind = backward_kind(project, frame.node, frame.scope)
    if WHOLE in kind.parts:  # a sum next to a loss of gathered rows
        return True
    return SUM in kind.parts and not kind.is_weighed and not is_of_all(project.analysis, project.distribution, path)


def _stepped_after(project: Project, path: Path, optimizers: list[Optimizer]) -> set[ast.Call]:
    """Return the optimizer that takes the first step after a backward call in its function."""
    frame = path.frames[0]
    line = getattr(frame.node, "lineno", 0)
    steps = [
        node
        for node in own_nodes(frame.scope.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
        if node.lineno >= line
    ]
    for step in sorted(steps, key=lambda node: (node.lineno, node.col_offset)):
        assert isinstance(step.func, ast.Attribute)
        for part in (step.func.value, *step.args):  # scaler.step(optimizer)
            values = project.analysis.evaluate(part, frame.scope)
            calls = {value.call for value in values if isinstance(value, (Result, Instance)) and value.call is not None}
            known = calls & {optimizer.call for optimizer in optimizers}
            if known:
                return known
    return set()


def rate_rules(project: Project) -> Iterator[tuple[Place, str]]:
    """Yield for each optimizer that the linear rule was not found for which rule its rate follows, and why."""
    summed, unbatched = summed_optimizers(project), unbatched_optimizers(project)
    for optimizer in project.optimizers if not project.distribution.is_by_hand else ():
        place = optimizer.scope.source.place(optimizer.call)
        names = sorted({builder.name for builder in optimizer.builders if builder.name})
        adaptive = [name for name in names if not name.startswith(("SGD", "ASGD", "LARS"))]
        if optimizer.call in summed:
            yield place, "the learning rate stays: the loss is a sum, which grows with the batch of all processes"
        elif optimizer.call in unbatched:
            yield place, "the learning rate stays: this training draws from no loader, and every process runs all of it"
        elif adaptive:
            yield (
                place,
                f"{', '.join(adaptive)}: the learning rate grows linearly with the batch, a rule that was found for "
                "SGD; for Adam and its relatives the square root is usual: RETROFIT_LR_SCALE=sqrt",
            )
