"""RF501 save-on-every-rank: all processes write the same file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.analysis import Analysis
from retrofit.project.edits import surround
from retrofit.project.guards import is_guarded
from retrofit.project.outputs import OPEN, SAVE, WRITE, Output, opens_for_writing
from retrofit.project.values import Item, Member, Result, Value, name_of

from .finding import Finding, found

CODE = "RF501"
NAME = "save-on-every-rank"
WHY = "N processes write one file at the same time: the last one wins, or the file is a mixture of several."
HELP = "write under `if rd.is_main_process():`, or open rd.path_on_main(path)"


def find(project: Project) -> Iterator[Finding]:
    for output in project.outputs:
        source = output.scope.source
        if output.kind == OPEN and output.call.args and not is_guarded(source, output.call):
            edits = surround(source, output.call.args[0], "rd.path_on_main(", ")")
            yield found(CODE, source, output.call, f"{output.name} writes on every process", HELP, edits)
        elif output.kind in (SAVE, WRITE) and not _into_guarded_file(project.analysis, output):
            if is_guarded(source, output.call):
                continue
            edits = list(project.guards.get(output, ()))
            yield found(CODE, source, output.call, f"{output.name} writes on every process", HELP, edits)


def _into_guarded_file(analysis: Analysis, output: Output) -> bool:
    """Return whether this writes into a file that was opened for it, which is guarded where it is opened."""
    given = [*output.call.args, *(keyword.value for keyword in output.call.keywords)]
    if isinstance(output.call.func, ast.Attribute):
        given.append(output.call.func.value)
    return any(_is_open_file(analysis, v) for node in given for v in analysis.evaluate(node, output.scope))


def _is_open_file(analysis: Analysis, value: Value) -> bool:
    while isinstance(value, (Member, Item)):
        value = value.base
    if not isinstance(value, Result):
        return False
    if name_of(value) in ("open", "io.open", "codecs.open", "gzip.open") and opens_for_writing(value.call):
        return True
    if value.maker in ("csv.writer", "csv.DictWriter"):
        return any(_is_open_file(analysis, v) for a in value.call.args for v in analysis.evaluate(a, value.scope))
    return False
