"""RF114 evaluation-order-per-rank: every process evaluates a shuffled loader in an order of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import EVALUATION
from retrofit.training.data.order import is_random
from retrofit.training.data.shards import is_sharded
from retrofit.training.files.guards import runs_on_one
from retrofit.training.torch_api.runtime import SAME_ORDER

RULE = CATALOG["RF114"]
INVALID = [
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
losses = []
with torch.no_grad():
    for step, (images, labels) in enumerate(shuffled):
        if step == 3:
            break
        losses.append((model(images) - labels).square().mean().item())
""",
    """\
chosen = DataLoader(dataset, 8, sampler=torch.utils.data.SubsetRandomSampler(range(30)))
model.eval()
with torch.no_grad():
    for step, (images, labels) in enumerate(chosen):
        if step < 3:
            total = max(total, model(images).max().item())
""",
    """\
def get_loader(split, shuffle=False):
    return DataLoader(dataset, 8, shuffle=shuffle and split != "never")


model.eval()
with torch.no_grad():
    for images, labels in get_loader("val", True):
        total = max(total, model(images).max().item())
""",
    """\
options = dict(batch_size=8)
model.eval()
with torch.no_grad():
    for images, labels in DataLoader(dataset, **options, shuffle=total > 2):
        total = max(total, model(images).max().item())
""",
]
VALID = [
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
losses = []
with torch.no_grad():
    for step, (images, labels) in enumerate(rd.evaluation.same_batches(shuffled)):
        if step == 3:
            break
        losses.append((model(images) - labels).square().mean().item())
""",
    # loaders with a fixed order
    """\
def get_loader(split, shuffle=False):
    if split == "ordered":
        return DataLoader(dataset, 8)
    return DataLoader(dataset, 8, shuffle=shuffle and split != "never")


val, ordered, never = get_loader("val"), get_loader("ordered", True), get_loader("never", True)
model.eval()
with torch.no_grad():
    for (images, labels), *_ in zip(val, ordered, never):
        total = max(total, model(images).max().item())
    for images, labels in DataLoader(dataset, sampler=torch.utils.data.SequentialSampler(dataset)):
        total = max(total, model(images).max().item())
""",
    # no shuffle among the options
    """\
val_loader = DataLoader(dataset, **{"batch_size": 8, "shuffle": False})
model.eval()
with torch.no_grad():
    for images, labels in val_loader:
        total = max(total, model(images).max().item())
""",
    # a sum is the same in any order (RF113 shards it)
    """\
shuffled = DataLoader(dataset, 8, shuffle=True)
model.eval()
total = 0
with torch.no_grad():
    for images, labels in shuffled:
        total += model(images).sum().item()
print(total)
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # one seed for all processes gives them one order, where the training draws from a sampler
    whole = {evaluation.loop for evaluation in project.evaluations if evaluation.reason}
    seen: set[ast.expr] = set()
    for loader in project.loaders:
        if is_sharded(project.ranks, loader) or not is_random(project.analysis, loader):
            continue
        for use in loader.uses:
            source = use.scope.source
            if use.role != EVALUATION or use.loop not in whole or use.expression in seen:
                continue
            outer = source.parents[use.expression]
            is_fixed = isinstance(outer, ast.Call) and project.analysis.called(outer, use.scope) & SAME_ORDER
            if is_fixed or runs_on_one(project.analysis, use.scope, use.loop):
                continue
            seen.add(use.expression)
            message = f"each process draws an order of its own from {source.segment(use.expression)}"
            edits = surround(source, use.expression, "rd.evaluation.same_batches(", ")")
            yield found(RULE, source, use.expression, message, edits)
