"""RF307 summed-loss-averaged: a loss summed over the batch, whose gradients are averaged over the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import surround
from retrofit.project.losses import is_of_all
from retrofit.project.scopes import Scope
from retrofit.project.summed import is_summed
from retrofit.project.training import backward_calls

from .finding import Finding, found

CODE = "RF307"
NAME = "summed-loss-averaged"
WHY = "DDP averages gradients over N processes; of a loss that is summed over the samples that leaves 1/N of the step."
HELP = "rd.sum_loss(loss).backward()"
BAD = """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
"""
GOOD = """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    rd.sum_loss(loss).backward()
"""
SCALING = "retrofit.distributed.sum_loss"


def find(project: Project) -> Iterator[Finding]:
    in_paths = {
        path.frames[0].node for path in project.paths if not is_of_all(project.analysis, project.distribution, path)
    }
    for call, scope in backward_calls(project.analysis):
        assert isinstance(call.func, ast.Attribute)
        if call not in in_paths or _has_factor(project, call.func.value, scope):
            continue
        if is_summed(project.analysis, call, scope):
            edits = surround(scope.source, call.func.value, "rd.sum_loss(", ")")
            yield found(CODE, scope.source, call, "the loss is a sum over the batch", HELP, edits)


def _has_factor(project: Project, loss: ast.expr, scope: Scope) -> bool:
    """Return whether the number of processes is in a loss already."""
    parts = [part for part in ast.walk(loss) if isinstance(part, ast.expr)]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    made = [b.value for name in names for b in scope.bindings.get(name, []) if b.value is not None]
    parts += [part for value in made for part in ast.walk(value) if isinstance(part, ast.expr)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    return any(SCALING in project.analysis.called(call, scope) for call in calls) or any(
        project.ranks.is_world_size(part, scope) for part in parts
    )
