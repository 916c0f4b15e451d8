"""RF103 loader-not-sharded: every process trains on all samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit, insert_after, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.variables import Assignment, assignments_to
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.data.iterable_not_sharded import is_stream
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.drawn import is_view
from retrofit.training.data.loaders import EVALUATION, TRAIN, Loader
from retrofit.training.data.shards import distributed_samplers, is_sharded
from retrofit.training.placement import after_variable
from retrofit.training.torch_api.distributed import RANK

RULE = CATALOG["RF103"]
INVALID = [
    """\
loader = DataLoader(dataset, batch_size=8, shuffle=True)
""",
    """\
for images, labels in DataLoader(dataset, batch_size=8, shuffle=True):
    criterion(model(images), labels).backward()
    optimizer.step()
""",
    """\
batches = iter(DataLoader(dataset, batch_size=8, shuffle=True))
for step in range(10):
    images, labels = next(batches)
    criterion(model(images), labels).backward()
""",
    """\
sampler = DistributedSampler(dataset, seed=dist.get_rank())
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
]
VALID = [
    """\
loader = DataLoader(dataset, batch_size=8, shuffle=True)
loader = rd.distribute_loader(loader)
""",
    # one order for all processes
    """\
sampler = DistributedSampler(dataset, seed=7)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
""",
    # a data set that is sharded by hand
    """\
share = Subset(dataset, range(rd.get_rank(), len(dataset), rd.get_world_size()))
loader = DataLoader(share, batch_size=8, shuffle=True)
""",
    # a class derived from torch's sampler
    """\
class Ordered(DistributedSampler):
    pass


loader = DataLoader(dataset, batch_size=8, sampler=Ordered(dataset))
""",
    # an evaluation, which every process may run whole
    """\
for images, labels in DataLoader(dataset, batch_size=8):
    total += model(images).sum().item()
""",
]


def find(project: Project) -> Iterator[Finding]:
    by_hand = project.distribution.is_by_hand
    for loader in project.loaders:
        uses = [use for use in loader.uses if use.role == TRAIN]
        yield from _permuted_apart(project, loader) if uses and by_hand else ()
        if not uses or is_sharded(project.ranks, loader) or (by_hand and is_stream(project, loader)):
            continue
        use = uses[0]
        message = "every process trains on all samples"
        if loader.variable is None:
            edits = _around(use.scope.source, use.expression)
            yield found(RULE, use.scope.source, use.expression, message, edits)
            continue
        inside = list(_made_inside(project, loader))
        if inside:
            edits = [edit for builder, scope in inside for edit in _around(scope.source, builder)]
            yield found(RULE, inside[0][1].source, inside[0][0], message, edits)
            continue
        place = after_variable(project.analysis, loader.variable, project.paths, partial(_is_view, project))
        if place is None:
            refusal = f"{loader.variable} is set in several places, so none comes after all of them"
            yield found(
                RULE, use.scope.source, use.expression, message, refusal=refusal, kind="loader-in-several-places"
            )
            continue
        source, statement = place
        line = f"{loader.variable} = rd.distribute_loader({loader.variable})"
        others = [use for use in loader.uses if use.role == EVALUATION]
        if others:
            message += f"; {loader.variable} is also read at {others[0].scope.source.place(others[0].expression)}"
        yield found(RULE, source, statement, message, [insert_after(source, statement, [line])])


def _permuted_apart(project: Project, loader: Loader) -> Iterator[Finding]:
    """Yield the samplers whose seed differs by rank: each process takes its share of another order."""
    for sampler in distributed_samplers(project.analysis, loader):
        seed = argument_for(sampler.call, [], "seed")
        if seed is not None and RANK in project.ranks.sources_of(seed, sampler.scope):
            message = "each process takes its share of another order, so shares overlap and samples are missed"
            yield found(RULE, sampler.scope.source, seed, message, help="one seed for the sampler on all processes")


def _is_view(project: Project, assignment: Assignment) -> bool:
    """Return whether a variable gets a view of a loader: `loader = tqdm(loader)`."""
    return is_view(project.analysis, assignment.value, assignment.scope)


def _made_inside(project: Project, loader: Loader) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that make what a variable holds something else of: `batches = iter(DataLoader(...))`."""
    assert loader.variable is not None
    for assignment in assignments_to(project.analysis, loader.variable):
        if isinstance(assignment.value, ast.Call) and assignment.value not in loader.builders:
            given = {part for argument in assignment.value.args for part in ast.walk(argument)}
            yield from ((builder, assignment.scope) for builder in loader.builders if builder in given)


def _around(source: Source, loader: ast.expr) -> list[Edit]:
    return surround(source, loader, "rd.distribute_loader(", ")")
