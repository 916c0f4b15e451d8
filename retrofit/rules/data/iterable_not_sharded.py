"""RF104 iterable-not-sharded: a dataset or a batch sampler whose order cannot be sharded from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance
from retrofit.rules.catalog import CATALOG
from retrofit.rules.data.shard_edits import shard_by_runtime
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import builders_of, given_to, is_sharded
from retrofit.training.torch_api.data import SPLITS_FILES, STREAM_PACKAGE

RULE = CATALOG["RF104"]
SHARDS_ITSELF = (
    "webdataset splits its shards by itself: give WebDataset(...) nodesplitter=wds.split_by_node, and end the pipeline "
    "with .repeat().with_epoch(STEPS // int(os.environ.get('WORLD_SIZE', 1))), so that all ranks make as many steps"
)
INVALID = [
    """\
class Lines(IterableDataset):
    def __iter__(self):
        return iter(open("data.txt"))


loader = DataLoader(Lines(), batch_size=8)
""",
    """\
class Pairs(torch.utils.data.Sampler):
    def __iter__(self):
        return iter([[0, 1], [2, 3]])


loader = DataLoader(dataset, batch_sampler=Pairs())
""",
    """\
class Lines(IterableDataset):
    def __iter__(self):
        yield from open("data.txt")


class Words(Lines):
    pass


loader = DataLoader(Words(), batch_size=8)
""",
]
VALID = [
    """\
class Lines(Dataset):
    def __init__(self):
        self.lines = open("data.txt").readlines()

    def __getitem__(self, index):
        return self.lines[index]


loader = DataLoader(Lines(), batch_size=8)
""",
    # the data set is told which lines are its own
    """\
class Lines(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size


loader = DataLoader(Lines(rd.get_rank(), rd.get_world_size()), batch_size=8)
""",
    # batches of this process's samples
    """\
batches = torch.utils.data.BatchSampler(DistributedSampler(dataset), 8, drop_last=True)
loader = DataLoader(dataset, batch_sampler=batches)
""",
    # an evaluation, which every process may run whole
    """\
class Lines(IterableDataset):
    def __iter__(self):
        return iter(open("data.txt"))


with torch.no_grad():
    for images, labels in DataLoader(Lines(), batch_size=8):
        total += model(images).sum().item()
""",
]


def find(project: Project) -> Iterator[Finding]:
    for loader in project.loaders:
        if TRAIN not in loader.roles:
            continue
        by_itself = next(_self_sharding(project, loader), None)
        if by_itself is not None and not _splits_by_rank(project):
            node, source = by_itself
            yield found(RULE, source, node, "every process reads every shard", refusal=SHARDS_ITSELF, kind="stream")
        elif by_itself is None and not is_sharded(project.ranks, loader) and composes_batches(project, loader):
            yield shard_by_runtime(project, loader, RULE, "every process draws all batches")


def composes_batches(project: Project, loader: Loader) -> bool:
    """Return whether no sampler says which samples a loader draws: a stream, or a batch sampler of the project."""
    return any(
        _reads_stream(project, *place) or _has_batch_sampler(*place) or _package_of(project, *place) == STREAM_PACKAGE
        for place in [*builders_of(project.analysis, loader), *_drawn(loader)]
    )


def is_stream(project: Project, loader: Loader) -> bool:
    """Return whether a loader reads a data set that has its order inside it."""
    return any(_reads_stream(project, *place) for place in builders_of(project.analysis, loader))


def _drawn(loader: Loader) -> list[tuple[ast.expr, Scope]]:
    return [(use.expression, use.scope) for use in loader.uses if use.role == TRAIN]


def _self_sharding(project: Project, loader: Loader) -> Iterator[tuple[ast.expr, Source]]:
    """Yield the loaders of a library whose streams split their files by themselves, over workers and ranks."""
    for node, scope in [*builders_of(project.analysis, loader), *_drawn(loader)]:
        dataset = given_to(node, "dataset") if isinstance(node, ast.Call) else None
        if any(_package_of(project, part, scope) == STREAM_PACKAGE for part in (node, dataset)):
            yield node, scope.source


def _splits_by_rank(project: Project) -> bool:
    """Return whether a pipeline says how ranks split its files, and when an epoch of all ends."""
    analysis = project.analysis
    own = [
        (call, name)
        for call, scope in reached_calls(analysis)
        for name in analysis.called(call, scope)
        if name.startswith(STREAM_PACKAGE)
    ]
    keywords = {keyword.arg for call, _ in own for keyword in call.keywords}
    return bool(keywords & SPLITS_FILES) and any(name.endswith(".with_epoch") for _, name in own)


def _package_of(project: Project, node: ast.expr | None, scope: Scope) -> str:
    names = project.analysis.named(node, scope)
    return min(names, default="").partition(".")[0]


def _has_batch_sampler(node: ast.expr, scope: Scope) -> bool:
    batches = given_to(node, "batch_sampler") if isinstance(node, ast.Call) else None
    return batches is not None and not isinstance(batches, ast.Constant)


def _reads_stream(project: Project, node: ast.expr, scope: Scope) -> bool:
    dataset = given_to(node, "dataset") if isinstance(node, ast.Call) else None
    values = project.analysis.evaluate(dataset, scope)
    return any(isinstance(v, Instance) and _is_iterable(project.analysis.classes.bases(v.scope)) for v in values)


def _is_iterable(bases: set[str]) -> bool:
    return any(name.endswith("IterableDataset") for name in bases)
