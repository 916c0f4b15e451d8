"""RF108 split-differs-by-rank: every process draws its own split, because nothing sets a seed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.reach import is_main_guard, reached_nodes

from .finding import Finding
from .process_group import behind_setup

CODE = "RF108"
NAME = "split-differs-by-rank"
WHY = (
    "Without a common seed every process splits and shuffles in its own way: a training sample of one is a test sample "
    "of another."
)
HELP = "rd.share_random_state(), right behind rd.setup_distributed"
BAD = """\
train_set, val_set = random_split(dataset, [80, 20])
"""
GOOD = """\
rd.share_random_state()
train_set, val_set = random_split(dataset, [80, 20])
"""


SEEDING = {"retrofit.distributed.share_random_state", "retrofit.distributed.seed_everything"}


def find(project: Project) -> Iterator[Finding]:
    if not project.paths or project.calls_any(SEEDING):
        return
    for node, scope in reached_nodes(project.analysis):
        is_seed = isinstance(node, ast.Call) and project.analysis.called(node, scope) & {"torch.manual_seed"}
        if is_seed and not any(_is_condition(outer) for outer in scope.source.ancestors(node)):
            return
    source, statement, edit = behind_setup(project, "rd.share_random_state()")
    yield Finding(
        CODE, source.place(statement), "no seed is set, so the processes differ from the start", HELP, (edit,)
    )


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not is_main_guard(node)
