"""RF104 iterable-not-sharded: a dataset or a batch sampler whose order cannot be sharded from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import builders_of, given_to, is_sharded
from retrofit.training.torch_api.distributed import RANK

RULE = CATALOG["RF104"]
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
    analysis = project.analysis
    for loader in project.loaders:
        if TRAIN not in loader.roles:
            continue
        for call, scope in builders_of(analysis, loader):
            source, dataset = scope.source, given_to(call, "dataset")
            if _reads_stream(project, call, scope) and RANK not in project.ranks.sources_of(dataset, scope):
                refusal = "an IterableDataset has its order inside it and must share itself out"
                yield found(RULE, source, call, "the stream is read by every process", refusal=refusal, kind="stream")
            batches = given_to(call, "batch_sampler")
            if batches is not None and not isinstance(batches, ast.Constant) and not is_sharded(project.ranks, loader):
                refusal = "a custom batch sampler composes whole batches; shard them inside it"
                yield found(
                    RULE, source, call, "the batches are drawn by every process", refusal=refusal, kind="batch-sampler"
                )


def is_stream(project: Project, loader: Loader) -> bool:
    """Return whether a loader reads a data set that has its order inside it."""
    return any(_reads_stream(project, *place) for place in builders_of(project.analysis, loader))


def _reads_stream(project: Project, call: ast.Call, scope: Scope) -> bool:
    values = project.analysis.evaluate(given_to(call, "dataset"), scope)
    return any(isinstance(v, Instance) and _is_iterable(project.analysis.classes.bases(v.scope)) for v in values)


def _is_iterable(bases: set[str]) -> bool:
    return any(name.endswith("IterableDataset") for name in bases)
