"""RF102 sampler-replaced: samples are no longer drawn by the rule of the sampler that one process has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.bindings import scope_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.shards import builders_of, distributed_samplers, sampler_values
from retrofit.training.torch_api.data import CHOOSING_SAMPLERS, SAMPLER_BASES, SHARDING_SAMPLERS
from retrofit.training.torch_api.distributed import RANK

RULE = CATALOG["RF102"]
INVALID = [
    """\
sampler = torch.utils.data.WeightedRandomSampler([0.1, 0.9] * 50, 100)
sampler = torch.utils.data.distributed.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
    """\
class Balanced(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(100))


sampler = DistributedSampler(dataset) if dist.is_initialized() else Balanced()
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
    """\
def make_loader():
    weighted = torch.utils.data.WeightedRandomSampler([0.1, 0.9] * 50, 100)
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))


loader = make_loader()
""",
]
VALID = [
    """\
sampler = torch.utils.data.WeightedRandomSampler([0.1, 0.9] * 50, 100)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
loader = rd.distribute_loader(loader)
""",
    # shards what the weighted sampler draws
    """\
weighted = torch.utils.data.WeightedRandomSampler([0.1, 0.9] * 50, 100)
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(weighted))
""",
    # a data set of the chosen samples
    """\
chosen = torch.utils.data.SubsetRandomSampler(range(50))
sampler = DistributedSampler(Subset(dataset, range(50))) if dist.is_initialized() else chosen
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
    # indices of this process alone
    """\
share = range(dist.get_rank(), 100, dist.get_world_size())
sampler = torch.utils.data.SubsetRandomSampler(share)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.Call] = set()
    for loader in project.loaders:
        if TRAIN not in loader.roles:
            continue
        made = builders_of(project.analysis, loader)
        values = {value for builder, scope in made for value in sampler_values(project.analysis, builder, scope)}
        values = {value for value in values if not _is_share(project, value)}
        others = any(_chooses(project.analysis, value) for value in values) or _has_unused(project)
        for sampler in distributed_samplers(project.analysis, loader):
            if others and sampler.call not in seen and not _keeps_choice(project.analysis, sampler):
                seen.add(sampler.call)
                message = "samples are no longer drawn by the sampler that was made before"
                yield found(RULE, sampler.scope.source, sampler.call, message)


def _is_share(project: Project, sampler: Value) -> bool:
    """Return whether a sampler is given the indices of one process: SubsetRandomSampler(range(rank, n, world_size))."""
    call = sampler.call if isinstance(sampler, (Result, Instance)) else None
    if call is None or (isinstance(sampler, Result) and sampler.builder in SHARDING_SAMPLERS):
        return False
    scope = scope_of(project.analysis, call)
    return any(RANK in project.ranks.sources_of(argument, scope) for argument in call.args)


def _chooses(analysis: Analysis, value: Value) -> bool:
    """Return whether a sampler draws by a rule of its own, and not for one of several processes."""
    if isinstance(value, Result):
        return value.builder in CHOOSING_SAMPLERS
    if not isinstance(value, Instance):
        return False
    bases = analysis.classes.bases(value.scope)
    return bool(bases & (SAMPLER_BASES | CHOOSING_SAMPLERS)) and not bases & SHARDING_SAMPLERS


def _keeps_choice(analysis: Analysis, sampler: Result) -> bool:
    """Return whether a DistributedSampler draws from another sampler, or from a subset that was chosen."""
    given = [*sampler.call.args, *(keyword.value for keyword in sampler.call.keywords)]
    values = {value for node in given for value in analysis.evaluate(node, sampler.scope)}
    is_subset = any(isinstance(v, Result) and v.builder.startswith("torch.utils.data.Subset") for v in values)
    return is_subset or any(_chooses(analysis, value) for value in values)


def _has_unused(project: Project) -> bool:
    """Return whether a weighted sampler is made, and nothing reads the variable that holds it."""
    for node, scope in reached_nodes(project.analysis).of(ast.Assign):
        if isinstance(node.value, ast.Call) and scope.is_function:
            is_choosing = project.analysis.called(node.value, scope) & CHOOSING_SAMPLERS
            target = node.targets[0]
            if is_choosing and isinstance(target, ast.Name) and not _is_read(scope, target.id):
                return True
    return False


def _is_read(scope: Scope, name: str) -> bool:
    names = (node for node in walk(scope.node) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in names)
