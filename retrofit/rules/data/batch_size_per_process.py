"""RF107 batch-size-per-process: every process takes the batch of all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.shards import builders_of, is_same, is_sharded, places_given
from retrofit.training.optimizer.rates import rates_of
from retrofit.training.torch_api.distributed import WORLD_SIZE

RULE = CATALOG["RF107"]
INVALID = [
    """\
global_batch_size = 64
sampler = torch.utils.data.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=global_batch_size, sampler=sampler)
""",
    """\
parser.add_argument("--total_batch_size", type=int, default=64)
args = parser.parse_args()
loader = DataLoader(dataset, args.total_batch_size, sampler=DistributedSampler(dataset))
""",
    """\
batch_size = 64
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
model = DDP(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * batch_size / 256)
""",
]
VALID = [
    """\
global_batch_size = 64
sampler = torch.utils.data.DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=global_batch_size // rd.get_world_size(), sampler=sampler)
""",
    # by its name it may be the batch size of one process
    """\
batch_size = 64
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
""",
    # the rate goes by the batch of all processes
    """\
batch_size = 64
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
model = DDP(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * batch_size * dist.get_world_size() / 256)
""",
    # an evaluation makes no steps
    """\
total_batch_size = 64
loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
for images, labels in DataLoader(dataset, total_batch_size, sampler=DistributedSampler(dataset)):
    total += model(images).sum().item()
""",
]
OF_ALL = {f"{which}_batch{size}" for which in ("global", "total") for size in ("", "size", "_size")}


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.is_by_hand:
        return  # the runtime has a flag for what the batch size means
    for loader in project.loaders:
        if TRAIN not in loader.roles or not is_sharded(project.ranks, loader):
            continue
        for builder, scope in builders_of(project.analysis, loader):
            for size, where in places_given(project.analysis, builder, scope, "batch_size"):
                if project.ranks.sources_of(size, where):
                    continue
                name = size.attr if isinstance(size, ast.Attribute) else getattr(size, "id", "")
                if name in OF_ALL:
                    message = f"each process takes the whole {ast.unparse(size)}"
                    yield found(RULE, scope.source, builder, message)
                else:
                    yield from _rates(project, (size, where))


def _rates(project: Project, size: tuple[ast.expr, Scope]) -> Iterator[Finding]:
    """Yield the rates that are scaled by a batch size although a step is taken on that of all processes."""
    for optimizer in project.optimizers:
        for rate, where in rates_of(project.analysis, optimizer):
            if WORLD_SIZE in project.ranks.sources_of(rate, where):
                continue
            if any(_scales(project, node, scope, size) for node, scope in project.ranks.origins(rate, where)):
                message = "the rate is scaled by the batch of one process, and a step is taken on that of all"
                yield found(RULE, where.source, rate, message)


def _scales(project: Project, node: ast.expr, scope: Scope, size: tuple[ast.expr, Scope]) -> bool:
    """Return whether this is lr * batch_size / reference, with this batch size and a number to refer to."""
    if not isinstance(node, ast.BinOp):
        return False
    parts = [part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute))]
    refers = any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and isinstance(part.right, ast.Constant)
        for part in walk(node)
    )
    return refers and any(is_same(project.analysis, (part, scope), size) for part in parts)
