"""RF308 mean-divided-by-batch: a mean over the batch is divided by the number of samples once more."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.divisions import COUNT, SIZE
from retrofit.project.edits import surround
from retrofit.project.losses import MEAN
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found

RULE = CATALOG["RF308"]
INVALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) / images.size(0)
    loss.backward()
"""
]
VALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) / rd.batch_count(images.size(0))
    loss.backward()
"""
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # there a step may be meant to be that of one process's batch
    for division in project.divisions:
        if division.loss == MEAN and division.kind in (SIZE, COUNT):
            source = division.scope.source
            edits = surround(source, division.count, "rd.batch_count(", ")") if division.is_settled else []
            message = "a mean is divided by this process's part of the batch: the gradient becomes N times as large"
            yield found(RULE, source, division.node, message, edits)
