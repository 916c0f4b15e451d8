"""RF205 buffers-modified-in-place: two forward passes of one DDP model before one backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.distribution import Site
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.layers import has_batchnorm
from retrofit.training.placement import block_of
from retrofit.training.torch_api.modules import SYNC_BATCHNORM

RULE = CATALOG["RF205"]
INVALID = [
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
for images, others in loader:
    real = model(images)
    fake = model(others)
    (real - fake).mean().backward()
""",
    """\
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))

    def forward(self, x):
        return self.layers(x)


model = DDP(Critic())
for images, others in loader:
    loss = model(images).mean() - model(others).mean()  # RF205
    loss.backward()
""",
]
VALID = [
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
for images, others in loader:
    real, fake = model(torch.cat([images, others])).chunk(2)
    (real - fake).mean().backward()
""",
    # buffers are not copied
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), broadcast_buffers=False)
for images, others in loader:
    real = model(images)
    fake = model(others)
    (real - fake).mean().backward()
""",
    # backward comes in between
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
for images, others in loader:
    model(images).mean().backward()
    model(others).mean().backward()
""",
    # one of the two has no backward pass
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
for images, others in loader:
    with torch.no_grad():
        fake = model(others)
    (model(images) - fake).mean().backward()
""",
    # LayerNorm has no buffers
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)))
for images, others in loader:
    real = model(images)
    fake = model(others)
    (real - fake).mean().backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    sites = [site for site in project.wrapping.sites if _writes_buffers(site) and has_batchnorm(project.analysis, site)]
    if not sites or project.calls_any(SYNC_BATCHNORM):
        return  # SyncBatchNorm's backward reads no buffers
    forwards: dict[tuple[Site, Scope], list[ast.Call]] = {}
    for node, scope in project.in_batches.of(ast.Call):
        if has_gradients(project.analysis, scope, node):
            site = project.wrapping.wrapped(node.func, scope)
            if site in sites:
                assert site is not None
                forwards.setdefault((site, scope), []).append(node)
    for (_, scope), calls in forwards.items():
        calls.sort(key=scope.source.place)
        for first, second in zip(calls, calls[1:]):
            if _wait_together(scope, first, second):
                message = f"{ast.unparse(second.func)} has run before, and its backward is still to come"
                yield found(RULE, scope.source, second, message)


def _writes_buffers(site: Site) -> bool:
    """Return whether DDP copies buffers: it does unless it is told not to."""
    return not any(keyword.arg in ("broadcast_buffers", None) for keyword in site.call.keywords)


def _wait_together(scope: Scope, first: ast.Call, second: ast.Call) -> bool:
    """Return whether both run one after the other, in one block, with no backward call between them."""
    statements = scope.source.statement(first), scope.source.statement(second)
    block = block_of(scope.source, statements[0])
    if statements[1] not in block or any(isinstance(outer, ast.IfExp) for outer in scope.source.ancestors(second)):
        return False
    between = block[block.index(statements[0]) : block.index(statements[1])]
    return not any(
        isinstance(node, ast.Attribute) and node.attr == "backward" for statement in between for node in walk(statement)
    )
