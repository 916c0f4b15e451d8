"""RF509 run-name-differs: each process names the run by its own clock, or its own dice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import surround
from retrofit.project.guards import runs_on_one
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope
from retrofit.project.source import Source

from .finding import Finding, found

CODE = "RF509"
NAME = "run-name-differs"
WHY = "Processes that start in different seconds have folders of different names, and do not find each other's files."
HELP = "rd.broadcast_object(time.strftime(...)): the name is that of the first process"
BAD = """\
folder = "runs/" + time.strftime("%Y%m%d_%H%M%S")
"""
GOOD = """\
folder = "runs/" + rd.broadcast_object(time.strftime("%Y%m%d_%H%M%S"))
"""
CLOCKS = {"time.time", "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow"}
NAMING = {
    "time.strftime", "time.ctime", "time.asctime", "uuid.uuid1", "uuid.uuid4", "tempfile.mkdtemp",
    *(f"{clock}.{method}" for clock in CLOCKS for method in ("strftime", "isoformat", "ctime")),
}  # fmt: skip
AGREEING = {"retrofit.distributed.broadcast_object"}


def find(project: Project) -> Iterator[Finding]:
    in_loops = {node for node, _ in project.in_loops}
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call) or node in in_loops or not _names(project, node, scope):
            continue
        if not _runs_on_all(project, node, scope) or _agrees(project, node, scope):
            continue
        name = _formatted(scope.source, node)
        edits = surround(scope.source, name, "rd.broadcast_object(", ")")
        yield found(CODE, scope.source, node, "this is another name in every process", HELP, edits)


def _names(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call makes a text of the time, or draws a unique one."""
    names = project.analysis.called(call, scope)
    if names == {"str"}:
        inner = [part for part in ast.walk(call) if isinstance(part, ast.Call) and part is not call]
        return any(project.analysis.called(part, scope) & CLOCKS for part in inner)
    return bool(names & NAMING)


def _runs_on_all(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether every process assigns this, and not while modules are imported, before the group is there."""
    statement = scope.source.statement(call)
    is_imported = scope.parent is None and scope.source is not project.entry
    is_kept = isinstance(statement, (ast.Assign, ast.AnnAssign))
    is_alone = runs_on_one(project.analysis, scope, statement) or project.runs_in_turn(scope, statement)
    return is_kept and not is_imported and not is_alone


def _agrees(project: Project, node: ast.AST, scope: Scope) -> bool:
    around = (outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call))
    return any(project.analysis.called(outer, scope) & AGREEING for outer in around)


def _formatted(source: Source, call: ast.Call) -> ast.expr:
    """Return the f-string around a call, inside which Python before 3.12 does not tell positions, or the call."""
    return next((outer for outer in source.ancestors(call) if isinstance(outer, ast.JoinedStr)), call)
