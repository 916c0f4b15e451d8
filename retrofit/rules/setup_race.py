"""RF504 setup-race: all processes prepare folders and data at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.early_rank import asked_too_early
from retrofit.project.distributed.turns import runs_in_turn
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
COMMANDS = {"os.system", "subprocess.call", "subprocess.run", "subprocess.check_call"}  # which may do anything
EARLY_HELP = "join the process group first, or read the rank from os.environ['RANK']"
BAD = """\
os.makedirs("checkpoints")
"""
GOOD = """\
if rd.is_main_process():
    os.makedirs("checkpoints")
"""


def find(project: Project) -> Iterator[Finding]:
    analysis = project.analysis
    for output in project.outputs:
        if output.kind != FOLDER or runs_on_one(analysis, output.scope, output.call):
            continue
        is_shared = project.distribution.is_by_hand and (output.name in COMMANDS or _may_exist(output.call))
        if not is_shared and not runs_in_turn(analysis, output.scope, output.call):
            edits = list(project.guards.get(output, ()))
            yield found(CODE, output.scope.source, output.call, f"{output.name} runs on every process", HELP, edits)
    for node, scope in reached_nodes(analysis):
        if not isinstance(node, ast.Call) or not _downloads(node):
            continue
        if not runs_in_turn(analysis, scope, node) and not runs_on_one(analysis, scope, node):
            edits = _main_first(scope.source, node)
            yield found(CODE, scope.source, node, "every process downloads the data", HELP, edits)
    for call, scope in asked_too_early(analysis, project.distribution):
        message = "the rank is asked before the process group exists: every process is told 0"
        yield found(CODE, scope.source, call, message, EARLY_HELP)


def _may_exist(call: ast.Call) -> bool:
    """Return whether a folder is made in a way that several processes may go at once."""
    return any(keyword.arg == "exist_ok" and getattr(keyword.value, "value", True) for keyword in call.keywords)


def _downloads(call: ast.Call) -> bool:
    return any(
        keyword.arg == "download" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def _main_first(source: Source, node: ast.AST) -> list[Edit]:
    try:
        return put_under(source, [source.statement(node)], "with rd.main_process_first():")
    except EditConflict:
        return []
