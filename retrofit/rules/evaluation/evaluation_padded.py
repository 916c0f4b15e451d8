"""RF105 evaluation-padded: a sum over the evaluation counts the samples with which a sampler fills up."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.values.kinds import Member, Result, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.shards import constant, distributed_samplers
from retrofit.training.torch_api.data import SHARDING_PARAMETERS, SHARDING_SAMPLERS, SHARDING_SIZES

RULE = CATALOG["RF105"]
INVALID = [
    """\
model = rd.distribute_model(Net())
sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
for images, labels in DataLoader(dataset, batch_size=8, sampler=sampler):
    total += (model(images) - labels).square().sum().item()
""",
    """\
ema = copy.deepcopy(model)
options = {"sampler": DistributedSampler(dataset)}
for images, labels in DataLoader(dataset, batch_size=8, **options):
    total += (ema(images) - labels).square().sum().item()
""",
    """\
outputs, parts = [], [None] * dist.get_world_size()
for images, labels in DataLoader(dataset, 8, sampler=DistributedSampler(dataset, shuffle=False)):
    outputs.append(model(images))
dist.all_gather_object(parts, torch.cat(outputs))
""",
]
VALID = [
    """\
model = rd.distribute_model(Net())
for images, labels in rd.share_batches(DataLoader(dataset, batch_size=8)):
    total += (model(images) - labels).square().sum().item()
""",
    # the padding is cut off
    """\
outputs, parts = [], [None] * dist.get_world_size()
for images, labels in DataLoader(dataset, 8, sampler=DistributedSampler(dataset, shuffle=False)):
    outputs.append(model(images))
dist.all_gather_object(parts, torch.cat(outputs))
outputs = torch.stack(parts, 1).flatten(0, 1)[: len(dataset)]
""",
    # no padding is needed
    """\
assert len(dataset) % dist.get_world_size() == 0
for images, labels in DataLoader(dataset, 8, sampler=DistributedSampler(dataset, shuffle=False)):
    total += (model(images) - labels).square().sum().item()
""",
    # shards without padding
    """\
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
share = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
for images, labels in DataLoader(share, batch_size=8):
    total += (model(images) - labels).square().sum().item()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.samplers or _knows_size(project):
        return
    seen: set[ast.Call] = set()
    for evaluation in project.measurements:
        if not evaluation.sums | evaluation.lists:
            continue
        for sampler in distributed_samplers(project.analysis, evaluation.loader):
            if sampler.call in seen:
                continue
            seen.add(sampler.call)
            how = "shuffled and " if _shuffles(sampler.call) else ""
            message = f"samples are {how}repeated until all processes have equally many, and count twice"
            if constant(sampler.call, "drop_last", SHARDING_PARAMETERS):
                message = f"samples are {how}left out until all processes have equally many"
            yield found(RULE, sampler.scope.source, sampler.call, message)


def _shuffles(sampler: ast.Call) -> bool:
    """Return whether the order changes from epoch to epoch, which is the default, and with it what counts twice."""
    given = argument_for(sampler, SHARDING_PARAMETERS, "shuffle")
    return given is None or (isinstance(given, ast.Constant) and given.value is True)


def _knows_size(project: Project) -> bool:
    """Return whether code asks how many samples a sampler gives: `len(loader.sampler)`, `sampler.total_size`.

    Also whether it cuts off what is too much, `outputs[: len(dataset)]`, or asks for the rest, `len(dataset) % ranks`.
    """
    for node, scope in reached_nodes(project.analysis):
        asked = None
        if isinstance(node, ast.Slice) and _has_length(node.upper):
            return True
        is_rest = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _has_length(node.left)
        if is_rest and project.ranks.is_world_size(node.right, scope):  # type: ignore[attr-defined]
            return True
        if isinstance(node, ast.Attribute) and node.attr in SHARDING_SIZES and isinstance(node.ctx, ast.Load):
            asked = node.value
        elif isinstance(node, ast.Call) and "len" in project.analysis.called(node, scope) and node.args:
            asked = node.args[0]
        if any(_is_sampler(value) for value in project.analysis.evaluate(asked, scope)):
            return True
    return False


def _has_length(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and last_name(node) == "len"


def _is_sampler(value: Value) -> bool:
    """Return whether a value is a DistributedSampler, or the sampler of a loader."""
    if isinstance(value, Member):
        return value.name == "sampler"
    return isinstance(value, Result) and value.builder in SHARDING_SAMPLERS
