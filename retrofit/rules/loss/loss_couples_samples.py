"""RF309 loss-couples-samples: Dice over a batch, or the root of a mean, computed on one process's share."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import surround
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training.losses.coupling import couplings, is_brought_together
from retrofit.training.losses.library import library_couplings

RULE = CATALOG["RF309"]
HELP_WHOLE = "rd.whole_batch_loss(criterion)(output, target), which gathers the outputs of all processes"
INVALID = [
    """\
for images, labels in loader:
    output = model(images)
    overlap = (output * labels).sum()
    loss = 1 - (2 * overlap + 1) / (output.sum() + labels.sum() + 1)
    loss.backward()
"""
]
VALID = [
    """\
for images, labels in loader:
    output = model(images)
    overlap = rd.batch_sum((output * labels).sum())
    loss = 1 - (2 * overlap + 1) / (rd.batch_sum(output.sum()) + rd.batch_sum(labels.sum()) + 1)
    loss.backward()
"""
]


def find(project: Project) -> Iterator[Finding]:
    for coupling in couplings(project):
        if is_brought_together(project, coupling.scope):
            continue
        source = coupling.scope.source
        message = "the loss couples the samples of a batch"
        if coupling.function:
            edits = surround(source, coupling.node, f"{coupling.function}(", ")")
            yield found(RULE, source, coupling.node, message, edits)
        else:
            yield found(RULE, source, coupling.node, f"{message}, and {coupling.reason}", help=HELP_WHOLE)
    for maker, scope, name, takes_more in library_couplings(project):
        edits = surround(scope.source, maker, "rd.whole_batch_loss(", ")") if not takes_more else []
        yield found(RULE, scope.source, maker, f"{name} couples the samples of a batch", edits, help=HELP_WHOLE)
