"""RF608 gpu-count-of-machine: a size is multiplied by the number of GPUs, in every process that drives one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import last_name
from retrofit.project.edits import surround_inside
from retrofit.project.reach import reached_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training.devices import SHOWING
from retrofit.training.gpu_counts import OWN, counted_gpus

RULE = CATALOG["RF608"]
INVALID = [
    """\
batch_size = 8 * torch.cuda.device_count()
"""
]
VALID = [
    """\
batch_size = 8 * rd.own_gpu_count(torch.cuda.device_count())
"""
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # there the number of GPUs of a machine is that of its processes
    for node, scope in counted_gpus(project.analysis, reached_nodes(project.analysis)):
        around = [outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call)]
        if any(last_name(call.func) in SHOWING or OWN in project.analysis.called(call, scope) for call in around):
            continue
        message = f"{scope.source.segment(node)} counts the GPUs of all processes, in each of them"
        edits = surround_inside(scope.source, node, "rd.own_gpu_count(", ")")
        yield found(RULE, scope.source, node, message, edits)
