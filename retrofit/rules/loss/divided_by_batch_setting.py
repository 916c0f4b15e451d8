"""RF310 divided-by-batch-setting: a summed loss is divided by the batch size of the settings, not that of the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.reductions.reduction import backward_kind
from retrofit.training.losses.terms import is_of_all

RULE = CATALOG["RF310"]
INVALID = [
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
for images, labels in loader:
    loss = (model(images) - labels).pow(2).sum() / batch_size
    loss.backward()
""",
    """\
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()
loader = rd.distribute_loader(DataLoader(dataset, args.batch_size, shuffle=True))
for images, labels in loader:
    loss = F.mse_loss(model(images), labels, reduction="sum") / args.batch_size
    loss.backward()
""",
]
VALID = [
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
for images, labels in loader:
    loss = (model(images) - labels).pow(2).sum() / rd.loss.rank_share(rd.loss.global_batch(batch_size))
    loss.backward()
""",
    # the batch tells its own size
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
for images, labels in loader:
    loss = (model(images) - labels).pow(2).sum() / len(images)
    loss.backward()
""",
    # another setting
    """\
batch_size, parts = 8, 4
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
for images, labels in loader:
    loss = (model(images) - labels).pow(2).mean() / parts
    loss.backward()
""",
    # in a distributed script this is the batch size of one process
    """\
batch_size = 8
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
model = DDP(Net())
for images, labels in loader:
    loss = (model(images) - labels).pow(2).sum() / batch_size
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:  # there the batch size is that of one process
        return
    seen: set[ast.AST] = set()
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        assert isinstance(call, ast.Call)
        if is_of_all(project.analysis, project.distribution, path):
            continue
        settings = backward_kind(project, call, scope).settings
        for node, where in sorted(settings, key=lambda place: (place[1].source.name, place[0].lineno)):
            if node not in seen:
                seen.add(node)
                edits = surround(where.source, node, "rd.loss.rank_share(rd.loss.global_batch(", "))")
                message = "a sum over the batch is divided by the batch size of the settings"
                yield found(RULE, where.source, node, message, edits)
