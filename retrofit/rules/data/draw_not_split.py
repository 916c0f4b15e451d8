"""RF115 draw-not-split: every process trains on a batch of its own drawing, or on the same slice of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround, surround_inside
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.draws.draws import PARTS, RANDOM, Draw

RULE = CATALOG["RF115"]
INVALID = [
    """\
data = torch.randn(100, 4)
batch_size = 8
for step in range(10):
    images = data[torch.randint(100, (batch_size,))]
    model(images).sum().backward()
    optimizer.step()
""",
    """\
data = torch.randn(100, 4)
for epoch in range(10):
    order = torch.randperm(100)
    for i in range(0, 100, 8):
        images = data[order[i : i + 8]]
        model(images).sum().backward()
        optimizer.step()
""",
]
VALID = [
    """\
data = torch.randn(100, 4)
batch_size = 8
for step in range(10):
    images = data[rd.data.own_draw(torch.randint(100, (rd.data.batch_of_ranks(batch_size),)))]
    rd.loss.sum_loss(model(images).sum()).backward()
    optimizer.step()
""",
    """\
data = torch.randn(100, 4)
for epoch in range(10):
    order = rd.data.draw_together(torch.randperm, 100)
    for i in range(0, 100, rd.data.batch_of_ranks(8)):
        images = data[rd.data.own_part(order[i : i + rd.data.batch_of_ranks(8)])]
        rd.loss.sum_loss(model(images).sum()).backward()
        optimizer.step()
""",
]
BEFORE = {RANDOM: "rd.data.own_draw(", PARTS: "map(rd.data.own_part, "}
ITERATORS = frozenset({"enumerate", "iter", "list", "zip"})


def find(project: Project) -> Iterator[Finding]:
    if project.draws.problems:
        return  # RF003 refuses
    for draw in project.draws.batches.values():
        message = "every process draws its own batch" if draw.kind == RANDOM else "every process takes the whole batch"
        yield found(RULE, draw.scope.source, draw.node, message, _edits(draw))
    for call, scope in project.draws.orders.items():
        message = "every process brings the data into an order of its own"
        yield found(RULE, scope.source, call, message, _together(call, scope))


def _edits(draw: Draw) -> Iterator[Edit]:
    before, after = BEFORE.get(draw.kind, "rd.data.own_part("), ")"
    if draw.kind == PARTS and not _is_gone_through(draw):
        before, after = f"list({before}", "))"
    yield from surround(draw.scope.source, draw.node, before, after)
    for size, scope in draw.sizes:
        yield from surround_inside(scope.source, size, "rd.data.batch_of_ranks(", ")")


def _is_gone_through(draw: Draw) -> bool:
    """Return whether the parts are only gone through where they are made, so that nothing asks for their number."""
    parent = draw.scope.source.parents[draw.node]
    if isinstance(parent, ast.Call):
        return draw.node in parent.args and last_name(parent) in ITERATORS
    return isinstance(parent, (ast.For, ast.comprehension, ast.YieldFrom))


def _together(call: ast.Call, scope: Scope) -> list[Edit]:
    """Return the edits that make `torch.randperm(n)` rd.data.draw_together(torch.randperm, n)."""
    source = scope.source
    start = source.span(call)[0]
    name_end = source.span(call.func)[1]
    first = source.span(call.args[0])[0]
    opening = source.text[name_end:first]
    return [
        Edit(source, start, start, "rd.data.draw_together("),
        Edit(source, name_end, first, opening.replace("(", ", ", 1)),
    ]
