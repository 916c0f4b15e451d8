"""RF604 device-shared: a device that is named by number is the same for every process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import replace
from retrofit.project.reach import reached_nodes

from .finding import Finding, found

CODE = "RF604"
NAME = "device-shared"
WHY = "Every process goes to the GPU with that number; the others stay idle."
HELP = "'cuda' without a number: the runtime has made the process's own GPU the current one"
BAD = """\
device = torch.device("cuda:0")
"""
GOOD = """\
device = torch.device("cuda")
"""
NUMBERED = re.compile(r"cuda:\d+")


def find(project: Project) -> Iterator[Finding]:
    # In a script that distributes itself a GPU's number outside the loop may be for runs of one process.
    nodes = project.in_batches if project.distribution.is_by_hand else reached_nodes(project.analysis)
    for node, scope in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NUMBERED.fullmatch(node.value):
            if _is_flag(node, scope.source.parents.get(node)):
                continue
            text = scope.source.segment(node)
            edits = [replace(scope.source, node, NUMBERED.sub("cuda", text))]
            yield found(CODE, scope.source, node, f"{node.value} is the same GPU for every process", HELP, edits)


def _is_flag(node: ast.AST, parent: ast.AST | None) -> bool:
    """Return whether a literal is only compared with, or says what a map_location leads away from."""
    return isinstance(parent, ast.Compare) or (isinstance(parent, ast.Dict) and node in parent.keys)
