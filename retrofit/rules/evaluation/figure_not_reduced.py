"""RF407 figure-not-reduced: a mean, a sum or a count of one rank's share is shown as if it were of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.analysis.calls import without_methods
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.reductions import reduce_value
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
READ_OR_COPIED = COPIES | READS


def find(project: Project) -> Iterator[Finding]:
    for root in figures_of(project).reducible:
        value = root.node if root.kind == LIST else without_methods(root.node, READ_OR_COPIED)
        edits = [reduce_value(root.scope, value, FUNCTIONS.get(root.kind, "rd.reduce_total"))]
        message = f"a {WORDS.get(root.kind, 'sum')} over one rank's share of the batch"
        yield found(RULE, root.scope.source, root.node, message, edits)
