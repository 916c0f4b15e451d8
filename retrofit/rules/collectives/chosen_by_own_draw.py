"""RF409 chosen-by-own-draw: a random number by which each process chooses what it does with its part of a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.draw_together import draw_together
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.draws.data_sets import data_sets_drawn_again
from retrofit.training.steps.choosing_draws import choosing_draws
from retrofit.training.torch_api.randomness import CHOOSING, TORCH_DRAWS
from retrofit.training.torch_api.tensors import READS

RULE = CATALOG["RF409"]
INVALID = [
    """\
for images, labels in loader:
    if random.random() < 0.5:  # RF409
        images = images.flip(-1)
    criterion(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    outputs = model(images)
    flip = torch.rand(1).item() < 0.5  # RF409
    loss = criterion(labels, outputs) if flip else criterion(outputs, labels)
    loss.backward()
""",
    """\
def is_mixed(chance):
    return np.random.rand(1) < chance  # RF409


for images, labels in loader:
    if is_mixed(0.5):
        images = 0.5 * images + 0.5 * images.flip(0)
    criterion(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    chosen = random.choice([nn.functional.mse_loss, nn.functional.l1_loss])  # RF409
    chosen(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    for _ in range(random.randint(1, 3)):  # RF409
        images = images + 1
    criterion(model(images), labels).backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    if rd.collectives.broadcast_object(random.random()) < 0.5:
        images = images.flip(-1)
    criterion(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    chosen = rd.data.draw_together(random.choice, [nn.functional.mse_loss, nn.functional.l1_loss])
    chosen(model(images), labels).backward()
""",
    # one for each sample
    """\
for images, labels in loader:
    images = torch.stack([image.flip(0) if random.random() < 0.5 else image for image in images])
    criterion(model(images), labels).backward()
""",
]
MESSAGE = "each process draws its own number, and chooses by it for its part of the batch"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    drawn_together = {*project.draws.orders, *project.draws.nodes, *(c for c, _ in data_sets_drawn_again(project))}
    for call, scope in choosing_draws(project).items():
        if call in drawn_together:  # by RF115
            continue
        yield found(RULE, scope.source, call, MESSAGE, _edits(project, call, scope))


def _edits(project: Project, call: ast.Call, scope: Scope) -> list[Edit]:
    """Return the edits that give every process what rank 0 draws: a number as it is.

    Objects that a draw chooses from, and tensors on a GPU, do not travel: there rank 0's random numbers do.
    """
    names = project.analysis.called(call, scope)
    read = _number_read(call, scope) if names & TORCH_DRAWS else call
    if read is None or names & CHOOSING:
        return draw_together(call, scope)
    return surround(scope.source, read, "rd.collectives.broadcast_object(", ")")


def _number_read(call: ast.Call, scope: Scope) -> ast.Call | None:
    """Return `torch.rand(1).item()` around `torch.rand(1)`."""
    read = scope.source.parents[call]
    outer = scope.source.parents[read]
    if isinstance(read, ast.Attribute) and read.attr in READS and isinstance(outer, ast.Call):
        return outer
    return None
