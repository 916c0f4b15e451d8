"""RF212 wrapper-discarded: the model inside DDP takes the place of the wrapper, and is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training.distributed.discarded import discards

RULE = CATALOG["RF212"]
INVALID = [
    """\
model = DDP(Net())
model = load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
"""
]
VALID = [
    """\
model = DDP(Net())
load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
"""
]


def find(project: Project) -> Iterator[Finding]:
    for discard in discards(project):
        message = f"{ast.unparse(discard.target)} loses its wrapper here, and is trained without it"
        yield found(RULE, discard.scope.source, discard.statement, message)
