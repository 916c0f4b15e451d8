"""RF115 draw-not-split: every process trains on a batch of its own drawing, or on the same slice of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround, surround_inside
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.draw_together import draw_together
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.draws.data_sets import data_sets_drawn_again
from retrofit.training.data.draws.draw import CALL, COLUMNS, PARTS, RANDOM, Draw
from retrofit.training.data.draws.whole import gives_batches, is_whole

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
    """\
for epoch in range(10):
    part, rest = torch.utils.data.random_split(dataset, [80, 20])
    for images, labels in DataLoader(part, batch_size=8):
        criterion(model(images), labels).backward()
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
BEFORE = {RANDOM: "rd.data.own_draw(", CALL: "rd.data.own_draw(", PARTS: "map(rd.data.own_part, "}
BEFORE_ALL = frozenset({RANDOM, CALL})  # drawn by each rank for itself
ITERATORS = frozenset({"enumerate", "iter", "list", "zip"})


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.is_by_hand:
        for call, scope in data_sets_drawn_again(project):
            message = "every process draws its own data set again, so their shares overlap and samples are missed"
            yield found(RULE, scope.source, call, message, draw_together(call, scope))
    if project.draws.problems:
        return  # RF003 refuses
    for draw in project.draws.batches.values():
        message = (
            "every process draws its own batch" if draw.kind in BEFORE_ALL else "every process takes the whole batch"
        )
        yield found(RULE, draw.scope.source, draw.node, message, _edits(draw))
    for call, scope in project.draws.orders.items():
        message = "every process brings the data into an order of its own"
        yield found(RULE, scope.source, call, message, draw_together(call, scope))
    for call, scope in project.draws.whole.items():
        outer = scope.source.parents[call]
        if not isinstance(outer, ast.Call) or not is_whole(project.analysis, outer, scope):
            message = "every process evaluates a part of the batches, since the training draws its own from there, too"
            given = call if gives_batches(project.analysis, call, scope) else call.func
            edits = surround(scope.source, given, "rd.data.whole_batches(", ")")
            yield found(RULE, scope.source, call, message, edits)


def _edits(draw: Draw) -> Iterator[Edit]:
    before, after = BEFORE.get(draw.kind, "rd.data.own_part("), ")"
    if draw.kind == PARTS and not _is_gone_through(draw):
        before, after = f"list({before}", "))"
    if draw.kind == COLUMNS:
        after = ".t()).t().contiguous()"
    if draw.kind == CALL:
        after = f", {draw.scope.source.segment(draw.sizes[0][0])})"
    yield from surround(draw.scope.source, draw.node, before, after)
    for size, scope in draw.sizes:
        yield from surround_inside(scope.source, size, "rd.data.batch_of_ranks(", ")")


def _is_gone_through(draw: Draw) -> bool:
    """Return whether the parts are only gone through where they are made, so that nothing asks for their number."""
    parent = draw.scope.source.parents[draw.node]
    if isinstance(parent, ast.Call):
        return draw.node in parent.args and last_name(parent) in ITERATORS
    return isinstance(parent, (ast.For, ast.comprehension, ast.YieldFrom))
