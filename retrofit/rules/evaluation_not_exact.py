"""RF111 evaluation-not-exact: the evaluation leaves out the last batch, of every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.shards import constant, is_sharded, makers_of

from .finding import Finding, found

CODE = "RF111"
NAME = "evaluation-not-exact"
WHY = "With drop_last each process leaves out its last batch: the more processes, the more samples are not measured."
HELP = "no drop_last for the evaluation: rd.shard_eval_loader(DataLoader(dataset, batch_size))"
BAD = """\
model = rd.distribute_model(Net())
for images, labels in rd.shard_eval_loader(DataLoader(dataset, batch_size=8, drop_last=True)):
    total += (model(images) - labels).square().sum().item()
"""
GOOD = """\
model = rd.distribute_model(Net())
for images, labels in rd.shard_eval_loader(DataLoader(dataset, batch_size=8)):
    total += (model(images) - labels).square().sum().item()
"""


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.Call] = set()
    for evaluation in project.measurements:
        if not evaluation.sums or not is_sharded(project.ranks, evaluation.loader):
            continue
        for maker, scope in makers_of(project.analysis, evaluation.loader):
            if maker not in seen and constant(maker, "drop_last") is True:
                seen.add(maker)
                yield found(CODE, scope.source, maker, "each process leaves out its last batch", HELP)
