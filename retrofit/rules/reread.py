"""RF508 reread-before-written: a file of this run is read again, perhaps before rank 0 has written it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.sides import MAIN, side_of
from retrofit.project.distributed.turns import WAITING
from retrofit.project.edits import insert_before
from retrofit.project.placement import block_of
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope

from .finding import Finding, found

CODE = "RF508"
NAME = "reread-before-written"
WHY = "Rank 0 writes the file, the others read it without waiting: they find none, or half of one."
HELP = "rd.barrier() before it is read"
BAD = """\
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
model.load_state_dict(torch.load("best.pt"))
"""
GOOD = """\
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
rd.barrier()
model.load_state_dict(torch.load("best.pt"))
"""


def find(project: Project) -> Iterator[Finding]:
    frames = [frame for path in project.paths for frame in path.frames]
    # Where training ends in each function that it goes through.
    lines = {f.scope: (f.loops[-1] if f.loops else f.node).end_lineno for f in frames}  # type: ignore[attr-defined]
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call) or not project.analysis.called(node, scope) & {"torch.load"}:
            continue
        if scope in lines and node.lineno > lines[scope]:
            statement = scope.source.statement(node)
            block = block_of(scope.source, statement)
            before = block[: block.index(statement)]
            behind = [earlier for earlier in before if earlier.lineno > lines[scope]]
            waits = any(_waits(project, part, scope) for earlier in behind for part in ast.walk(earlier))
            if waits or side_of(project.analysis, scope, node) == MAIN:
                continue
            edits = [insert_before(scope.source, statement, ["rd.barrier()"])]
            yield found(CODE, scope.source, node, "a checkpoint of this run is read by all processes", HELP, edits)


def _waits(project: Project, node: ast.AST, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and bool(project.analysis.called(node, scope) & WAITING)
