"""RF103 loader-not-sharded: every process trains on all samples."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.data.iterable_not_sharded import composes_batches
from retrofit.rules.data.loader_entries import are_split
from retrofit.rules.data.shard_edits import shard_by_runtime
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.data.shards import distributed_samplers, is_sharded
from retrofit.training.optimizer.counted_draws import counted_draws, divided_by_draws
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
    # the loss counts the padding of the whole batch
    """\
def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


loader = DataLoader(dataset, batch_size=8, collate_fn=collate)
for x in loader:
    nn.functional.mse_loss(model(x), x).backward()
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
        if TRAIN not in loader.roles:
            continue
        yield from _permuted_apart(project, loader) if by_hand else ()
        if loader.variable is None and are_split(project.analysis, loader):
            continue
        if not is_sharded(project.ranks, loader) and not composes_batches(project, loader):
            yield shard_by_runtime(project, loader, RULE, "every process trains on all samples")
    counts = [] if by_hand else dict.fromkeys([*counted_draws(project), *divided_by_draws(project)])
    for number, scope in counts:
        edits = surround(scope.source, number, "rd.data.own_batches(", ")")
        yield found(RULE, scope.source, number, "a process has fewer batches than there are", edits)


def _permuted_apart(project: Project, loader: Loader) -> Iterator[Finding]:
    """Yield the samplers whose seed differs by rank: each process takes its share of another order."""
    for sampler in distributed_samplers(project.analysis, loader):
        seed = argument_for(sampler.call, [], "seed")
        if seed is not None and RANK in project.ranks.sources_of(seed, sampler.scope):
            message = "each process takes its share of another order, so shares overlap and samples are missed"
            yield found(RULE, sampler.scope.source, seed, message, help="one seed for the sampler on all processes")
