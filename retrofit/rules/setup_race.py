"""RF504 setup-race: all processes prepare folders and data at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import Edit, EditConflict, put_under
from retrofit.project.guards import runs_on_one
from retrofit.project.outputs import FOLDER
from retrofit.project.reach import reached_nodes
from retrofit.project.source import Source

from .finding import Finding, found

CODE = "RF504"
NAME = "setup-race"
WHY = "Two processes make one folder or fill one cache at the same time: one fails, or reads what is half written."
HELP = "make folders under `if rd.is_main_process():`, prepare data under `with rd.main_process_first():`"
BAD = """\
os.makedirs("checkpoints")
"""
GOOD = """\
if rd.is_main_process():
    os.makedirs("checkpoints")
"""


def find(project: Project) -> Iterator[Finding]:
    for output in project.outputs:
        if output.kind == FOLDER and not runs_on_one(project.analysis, output.scope, output.call):
            edits = list(project.guards.get(output, ()))
            yield found(CODE, output.scope.source, output.call, f"{output.name} runs on every process", HELP, edits)
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Call) and _downloads(node) and not _waits(scope.source, node):
            edits = _main_first(scope.source, node)
            yield found(CODE, scope.source, node, "every process downloads the data", HELP, edits)


def _downloads(call: ast.Call) -> bool:
    return any(
        keyword.arg == "download" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def _waits(source: Source, node: ast.AST) -> bool:
    """Return whether rank 0 goes first here."""
    return any(
        isinstance(outer, ast.With) and any("main_process_first" in source.segment(i.context_expr) for i in outer.items)
        for outer in source.ancestors(node)
    )


def _main_first(source: Source, node: ast.AST) -> list[Edit]:
    try:
        return put_under(source, [source.statement(node)], "with rd.main_process_first():")
    except EditConflict:
        return []
