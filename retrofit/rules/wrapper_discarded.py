"""RF212 wrapper-discarded: the model inside DDP takes the place of the wrapper, and is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.training.distributed.discarded import discards

from .finding import Finding, found

CODE = "RF212"
NAME = "wrapper-discarded"
WHY = "After `model = load(model.module)` nothing averages the gradients any more: each process trains its own model."
HELP = "change model.module in place, or give the inner model a name of its own: raw_model = model.module"
BAD = """\
model = DDP(Net())
model = load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
"""
GOOD = """\
model = DDP(Net())
load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
"""


def find(project: Project) -> Iterator[Finding]:
    for discard in discards(project):
        message = f"{ast.unparse(discard.target)} loses its wrapper here, and is trained without it"
        yield found(CODE, discard.scope.source, discard.statement, message, HELP)
