"""RF404 total-per-rank: what an epoch has added up is of one process's share of the samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import insert_after, surround
from retrofit.project.scopes import own_nodes
from retrofit.project.totals import Totals

from .evaluation_repeated import reductions
from .finding import Finding, found

CODE = "RF404"
NAME = "total-per-rank"
WHY = "Each process counts its own samples: divided by the size of the data set, that is a part of the accuracy."
HELP = "correct, total = rd.sum_over_ranks(correct, total), behind the loop and on every process"
BAD = """\
for epoch in range(3):
    correct = 0
    for images, labels in loader:
        outputs = model(images)
        criterion(outputs, labels).backward()
        correct += (outputs.argmax(1) == labels.argmax(1)).sum().item()
    print(correct / len(dataset))
"""
GOOD = """\
for epoch in range(3):
    correct = 0
    for images, labels in loader:
        outputs = model(images)
        criterion(outputs, labels).backward()
        correct += (outputs.argmax(1) == labels.argmax(1)).sum().item()
    correct = rd.sum_over_ranks(correct)
    print(correct / len(dataset))
"""
SUMMING = {"retrofit.distributed.sum_over_ranks", "retrofit.distributed.sum_attributes"}


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    for totals in project.totals:
        source = totals.scope.source
        summed = _summed(project, totals)
        missing = tuple(a for a in totals.accumulators if ast.unparse(a.target) not in summed)
        if missing:
            names = ", ".join(ast.unparse(accumulator.target) for accumulator in missing)
            of = source.segment(totals.loader) if totals.loader is not None else ""
            edits = [insert_after(source, totals.loop, [*reductions(missing, of)])]
            for size in totals.sizes:
                edits += surround(source, size, "rd.micro_batch(", ")")
            yield found(CODE, source, totals.loop, f"{names}: of one process's share", HELP, edits)


def _summed(project: Project, totals: Totals) -> set[str]:
    """Return what is summed over the processes already."""
    return {
        ast.unparse(argument)
        for node in own_nodes(totals.scope.node)
        if isinstance(node, ast.Call) and project.analysis.called(node, totals.scope) & SUMMING
        for argument in node.args
    }
