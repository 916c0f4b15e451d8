"""RF106 uneven-batches: shards that are cut by hand differ in length, and so in their number of batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.data.iterable_not_sharded import is_stream
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Use
from retrofit.training.data.shards import builders_of, given_to, may_give, strides
from retrofit.training.torch_api.distributed import RANK, WORLD_SIZE

RULE = CATALOG["RF106"]
INVALID = [
    """\
share = torch.utils.data.Subset(dataset, range(rd.get_rank(), len(dataset), rd.get_world_size()))
loader = DataLoader(share, batch_size=8, shuffle=True)
""",
    """\
order = torch.randperm(len(dataset)).tolist()
share = Subset(dataset, order[dist.get_rank() :: dist.get_world_size()])
loader = DataLoader(share, batch_size=8)
""",
]
VALID = [
    """\
loader = rd.distribute_loader(DataLoader(dataset, batch_size=8, shuffle=True))
""",
    # the last batch is left out
    """\
share = Subset(dataset, range(rd.get_rank(), len(dataset), rd.get_world_size()))
loader = DataLoader(share, batch_size=8, drop_last=True)
""",
    # the same number of samples on all processes
    """\
size = len(dataset) - len(dataset) % rd.get_world_size()
share = Subset(dataset, range(rd.get_rank(), size, rd.get_world_size()))
loader = DataLoader(share, batch_size=8)
""",
    # the same number of batches on all processes
    """\
share = Subset(dataset, range(rd.get_rank(), len(dataset), rd.get_world_size()))
for step, (images, labels) in enumerate(DataLoader(share, batch_size=8)):
    criterion(model(images), labels).backward()
    if step == 9:
        break
""",
    # a process that has no more batches joins the steps of the others
    """\
model = DDP(Net())
share = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
with model.join():
    for images, labels in DataLoader(share, batch_size=8):
        criterion(model(images), labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if _joins_in(project):
        return
    for loader in project.loaders:
        if loader.is_split or is_stream(project, loader) or not any(_is_drawn_out(use) for use in loader.uses):
            continue
        for builder, scope in builders_of(project.analysis, loader):
            may_drop = may_give(project.analysis, builder, scope, "drop_last")
            cuts = strides(project.analysis, given_to(builder, "dataset"), scope)
            if not may_drop and any(_is_uneven(project, node, where) for node, where in cuts):
                yield found(RULE, scope.source, builder, "processes have different numbers of batches")


def _is_drawn_out(use: Use) -> bool:
    """Return whether the training continues until a loader has no more batches."""
    if use.role != TRAIN or not isinstance(use.loop, ast.For):
        return False
    if any(use.expression in walk(statement) for statement in use.loop.body):  # next() fetches a batch
        return False
    return not any(isinstance(node, ast.Break) for node in walk(use.loop))


def _is_uneven(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this takes every world_size-th from the rank on, up to the very end: range(rank, len(x), n)."""
    start = stop = step = None
    if isinstance(node, ast.Call) and len(node.args) == 3:
        start, stop, step = node.args
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        start, stop, step = node.slice.lower, node.slice.upper, node.slice.step
    if start is None or step is None:
        return False
    from_rank = project.ranks.sources_of(start, scope) == {RANK}
    up_to_end = stop is None or (isinstance(stop, ast.Call) and "len" in project.analysis.called(stop, scope))
    return from_rank and up_to_end and project.ranks.sources_of(step, scope) == {WORLD_SIZE}


def _joins_in(project: Project) -> bool:
    """Return whether a process without batches takes part in the steps of the others: with model.join()."""
    for node, scope in reached_nodes(project.analysis).of(ast.withitem):
        if isinstance(node.context_expr, ast.Call):
            function = node.context_expr.func
            if isinstance(function, ast.Attribute) and function.attr == "join":
                return True
            names = project.analysis.called(node.context_expr, scope)
            if any(name.endswith(".Join") for name in names):
                return True
    return False
