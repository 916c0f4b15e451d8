"""RF410 evaluation-drawn-per-rank: the training decides by an evaluation in which each process draws at random."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.draw_together import draw_together
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.evaluation.by_hand import Drawn, drawing_evaluations
from retrofit.training.steps.shared_branches import all_come_to, leaves_or_trains

RULE = CATALOG["RF410"]
INVALID = [
    """\
def evaluate(model, data):
    with torch.no_grad():
        return model(data + torch.randn_like(data)).square().mean().item()


held_out = torch.randn(100, 4)
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    value = evaluate(model, held_out)  # RF410
    if value > 3:
        break
""",
    # of dropout
    """\
net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def evaluate(data):
    total = 0
    for i in range(0, len(data), 8):
        total += net(data[i : i + 8]).sum().item()
    return total


held_out = torch.randn(100, 4)
for epoch in range(10):
    for images, labels in loader:
        criterion(net(images), labels).backward()
    scheduler.step(evaluate(held_out))  # RF410
""",
    # in the function of the training
    """\
held_out = torch.randn(100, 4)
best = 10
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    total = 0
    for i in range(0, 100, 8):  # RF410
        part = held_out[i : i + 8]
        total += model(part + torch.randn_like(part)).sum().item()
    if total > best:
        break
    best = total
""",
]
VALID = [
    """\
def evaluate(model, data):
    with torch.no_grad():
        return model(data + torch.randn_like(data)).square().mean().item()


held_out = torch.randn(100, 4)
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    value = rd.data.draw_together(evaluate, model, held_out)
    if value > 3:
        break
""",
    # nothing is drawn
    """\
def evaluate(model, data):
    with torch.no_grad():
        return model(data).square().mean().item()


held_out = torch.randn(100, 4)
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    value = evaluate(model, held_out)
    if value > 3:
        break
""",
    # nothing is decided
    """\
def evaluate(model, data):
    with torch.no_grad():
        return model(data + torch.randn_like(data)).square().mean().item()


held_out = torch.randn(100, 4)
for epoch in range(10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    value = evaluate(model, held_out)
    print(value)
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    for drawn in drawing_evaluations(project):
        message = "each process draws random numbers of its own for this evaluation, and decides by it"
        yield found(RULE, drawn.scope.source, drawn.node, message, _edits(project, drawn))


def _edits(project: Project, drawn: Drawn) -> list[Edit]:
    """Return the edits by which all processes evaluate with rank 0's random numbers, or decide by its figures."""
    if isinstance(drawn.node, ast.Call):
        return draw_together(drawn.node, drawn.scope) if all_come_to(project, drawn.node, drawn.scope) else []
    return [edit for node, scope in drawn.decisions for edit in _decided_by_main(project, node, scope)]


def _decided_by_main(project: Project, node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not all_come_to(project, node, scope):
        return
    if isinstance(node, (ast.If, ast.While)) and leaves_or_trains(project, node, scope):
        yield from surround(scope.source, node.test, "rd.collectives.broadcast_object(bool(", "))")
    elif isinstance(node, ast.Call):
        for given in node.args[:1]:
            yield from surround(scope.source, given, "rd.collectives.broadcast_object(", ")")
