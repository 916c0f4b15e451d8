"""RF101 set-epoch-missing: a sampler that shuffles is never told that a new epoch begins."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit, has_own_lines, insert_before
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Member, Result, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import builders_of, constant, distributed_samplers
from retrofit.training.torch_api.data import SHARDING_PARAMETERS, SHARDING_SAMPLERS

RULE = CATALOG["RF101"]
INVALID = [
    """\
sampler = torch.utils.data.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = rd.distribute_model(Net())
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    """\
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
]
VALID = [
    """\
sampler = torch.utils.data.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = rd.distribute_model(Net())
for epoch in range(10):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    # the sampler of this loader
    """\
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
for epoch in range(10):
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    # one epoch
    """\
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.Call] = set()
    for loader in project.loaders:
        if TRAIN not in loader.roles or not _is_drawn_again(project, loader):
            continue
        for sampler in distributed_samplers(project.analysis, loader):
            shuffles = constant(sampler.call, "shuffle", SHARDING_PARAMETERS) is not False
            if sampler.call in seen or not shuffles or _is_told(project, loader, sampler):
                continue
            if _is_rebuilt(project, sampler):
                continue
            seen.add(sampler.call)
            message = "every epoch has the order of the first one"
            edits = _telling(project, loader, sampler)
            yield found(RULE, sampler.scope.source, sampler.call, message, edits)


def _is_drawn_again(project: Project, loader: Loader) -> bool:
    """Return whether the training loop over a loader is in another loop, that of the epochs."""
    loops = [[loop for loop, _ in path.loops] for path in project.paths]
    drawn = {use.loop for use in loader.uses if use.role == TRAIN}
    return any(loop in drawn for way in loops for loop in way[:-1])


def _is_rebuilt(project: Project, sampler: Result) -> bool:
    """Return whether each epoch makes a sampler of its own, with a seed of its own."""
    is_in_loop = any(node is sampler.call for node, _ in project.in_loops)
    return is_in_loop and argument_for(sampler.call, SHARDING_PARAMETERS, "seed") is not None


def _is_told(project: Project, loader: Loader, sampler: Result) -> bool:
    """Return whether set_epoch is called on a sampler, or on something that may be it."""
    nodes = ((node, scope) for scope in project.analysis.scopes() for node in own_nodes(scope.node))
    for node, scope in nodes:  # those that nothing calls too: who does may not be found
        if isinstance(node, ast.Attribute) and node.attr == "set_epoch" and isinstance(node.ctx, ast.Load):
            values = project.analysis.evaluate(node.value, scope)
            if not values or any(not _is_another(value, loader, sampler) for value in values):
                return True
    return False


def _is_another(value: Value, loader: Loader, sampler: Result) -> bool:
    """Return whether a value is surely not this sampler: another one, or that of another loader."""
    while isinstance(value, Member):
        if isinstance(value.base, Result) and value.name in ("sampler", "batch_sampler"):
            return value.base.call not in loader.builders
        value = value.base
    return isinstance(value, Result) and value.builder in SHARDING_SAMPLERS and value.call is not sampler.call


def _telling(project: Project, loader: Loader, sampler: Result) -> list[Edit]:
    """Return an edit that calls set_epoch in the loop over the epochs, where the sampler has a name there."""
    for path in project.paths:
        for loop, frame in path.loops[1:]:
            first = loop.body[0]
            name = _name_in(project, frame.scope, loader, sampler)
            if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or not name:
                continue
            if has_own_lines(frame.scope.source, first):
                return [insert_before(frame.scope.source, first, [f"{name}.set_epoch({loop.target.id})"])]
    return []


def _name_in(project: Project, scope: Scope, loader: Loader, sampler: Result) -> str:
    """Return how a function can name the sampler: by its own variable, which never holds another thing."""
    analysis = project.analysis
    owner: Scope | None = scope
    while owner is not None:
        for name in owner.bindings:
            node = ast.Name(name, ast.Load())
            if analysis.evaluate(node, scope) == frozenset([sampler]):
                return name
            holds_loader = loader.variable is not None and loader.variable in variables_of(analysis, node, scope)
            if holds_loader and _is_only(analysis, loader, sampler):
                return f"{name}.sampler"
        owner = owner.parent
    return ""


def _is_only(analysis: Analysis, loader: Loader, sampler: Result) -> bool:
    """Return whether a loader has this sampler in any case, under no condition."""
    if not len(distributed_samplers(analysis, loader)) == len(builders_of(analysis, loader)) == 1:
        return False
    outers = sampler.scope.source.ancestors(sampler.call)
    return not any(isinstance(outer, (ast.If, ast.IfExp, ast.BoolOp)) for outer in outers)
