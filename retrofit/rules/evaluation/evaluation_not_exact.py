"""RF111 evaluation-not-exact: the evaluation leaves out the last batch, of every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.shards import builders_of, constant, is_sharded

RULE = CATALOG["RF111"]
INVALID = [
    """\
model = DDP(Net())
sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
for images, labels in DataLoader(dataset, 8, sampler=sampler, drop_last=True):
    total += (model(images) - labels).square().sum().item()
""",
    """\
model = DDP(Net())
share = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
for images, labels in DataLoader(share, 8, drop_last=True):
    total += (model(images) - labels).square().sum().item()
""",
]
VALID = [
    """\
model = rd.distribute_model(Net())
for images, labels in rd.share_batches(DataLoader(dataset, batch_size=8)):
    total += (model(images) - labels).square().sum().item()
""",
    # a training may leave samples out
    """\
loader = rd.distribute_loader(DataLoader(dataset, batch_size=8, drop_last=True))
""",
    # every process evaluates all samples, and leaves out the same batch as one process
    """\
model = rd.distribute_model(Net())
for images, labels in DataLoader(dataset, batch_size=8, drop_last=True):
    total += (model(images) - labels).square().sum().item()
""",
    # all ranks together leave out the batch that one process leaves out
    """\
model = rd.distribute_model(Net())
for images, labels in rd.share_batches(DataLoader(dataset, batch_size=8, drop_last=True)):
    total += (model(images) - labels).square().sum().item()
""",
    # nothing is added up
    """\
model = DDP(Net())
sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
for images, labels in DataLoader(dataset, 8, sampler=sampler, drop_last=True):
    rd.print_main(model(images).shape)
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.Call] = set()
    for evaluation in project.measurements:
        if not evaluation.sums or not is_sharded(project.ranks, evaluation.loader):
            continue
        for builder, scope in builders_of(project.analysis, evaluation.loader):
            if builder not in seen and constant(builder, "drop_last") is True:
                seen.add(builder)
                yield found(RULE, scope.source, builder, "each process leaves out its last batch")
