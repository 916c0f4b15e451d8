"""RF407 figure-not-reduced: a mean, a sum or a count of one rank's share is shown as if it were of the whole batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import without_methods
from retrofit.analysis.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.reductions import reduce_value
from retrofit.training.figures.counts.step_counts import StepCount, step_counts, unknown_step_counts
from retrofit.training.figures.figures import figures_of
from retrofit.training.figures.kinds import BATCH_SIZE, LIST, MEAN
from retrofit.training.torch_api.tensors import COPIES, READS

RULE = CATALOG["RF407"]
INVALID = [
    """\
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    print("accuracy", (outputs.argmax(1) == labels.argmax(1)).sum().item() / len(labels))
""",
    """\
hits = 0
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    hits += (outputs > labels).sum().item()
print(hits)
""",
    """\
scores = []
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    scores.extend(outputs.tolist())
print(np.median(scores))
""",
]
VALID = [
    """\
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    print("accuracy", rd.reduce_loss((outputs.argmax(1) == labels.argmax(1)).sum().item() / len(labels)))
""",
    # the count is summed over the processes
    """\
hits = 0
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    hits += rd.reduce_total((outputs > labels).sum().item())
print(hits)
""",
    # the number of batches is the same everywhere
    """\
seen = 0
for images, labels in loader:
    criterion(model(images), labels).backward()
    seen += 1
print(seen)
""",
    # nothing shows it
    """\
hits = 0
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    hits += (outputs > labels).sum().item()
""",
]
WORDS = {MEAN: "mean", LIST: "list"}
FUNCTIONS = {MEAN: "rd.reduce_loss", LIST: "rd.data.gather_batch", BATCH_SIZE: "rd.loss.global_batch"}
HELP_STEPS = "divide the samples by rd.data.samples_per_step(batch_size) where it is the batch size of the training"
STEP_SIZE = "rd.data.samples_per_step"
READ_OR_COPIED = COPIES | READS


def find(project: Project) -> Iterator[Finding]:
    steps = list(step_counts(project))
    yield from _of_steps(project, steps)
    counted = {node for count in steps for node, _ in count.sizes}
    for root in figures_of(project).reducible:
        if root.node in counted:
            continue
        value = root.node if root.kind == LIST else without_methods(root.node, READ_OR_COPIED)
        edits = [reduce_value(root.scope, value, FUNCTIONS.get(root.kind, "rd.reduce_total"))]
        message = f"a {WORDS.get(root.kind, 'sum')} over one rank's share of the batch"
        yield found(RULE, root.scope.source, root.node, message, edits)


def _of_steps(project: Project, counts: list[StepCount]) -> Iterator[Finding]:
    """Yield the numbers of steps of one process that figures of an epoch are divided by."""
    seen: set[ast.AST] = set()
    for count in counts:
        sizes = [place for place in count.sizes if place[0] not in seen]
        seen |= {node for node, _ in sizes}
        if sizes or not count.sizes:
            edits = [edit for node, scope in sizes for edit in surround(scope.source, node, f"{STEP_SIZE}(", ")")]
            message = f"{ast.unparse(count.number)} is the number of steps that one process would make"
            yield found(RULE, count.scope.source, count.number, message, edits)
    for number, scope in unknown_step_counts(project):
        message = f"{ast.unparse(number)} can be the number of steps of one process, N times that of each of N"
        yield found(RULE, scope.source, number, message, help=HELP_STEPS)
