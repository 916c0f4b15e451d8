"""RF212 wrapper-discarded: the model inside DDP takes the place of the wrapper, and is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.discarded_wrappers import discards

RULE = CATALOG["RF212"]
INVALID = [
    """\
model = DDP(Net())
model = load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    """\
model = DDP(Net())
model = copy.deepcopy(model.module)
""",
    """\
model = DDP(Net())
model = torch.compile(model.module)
""",
    """\
model = DDP(Net())
model = model.module.to("cpu")
""",
    """\
model = DDP(Net())
if hasattr(model, "module"):
    model = model.module
""",
    """\
model = DDP(Net())
model = getattr(model, "module", model)
""",
    """\
model = DDP(Net())
inner = model.module
if os.path.exists("last.pt"):
    model, start = load_all(inner, "last.pt")
""",
    """\
model = DDP(Net())
for epoch in range(2):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    model = model.module
""",
]
VALID = [
    """\
model = DDP(Net())
load_weights(model.module, "last.pt")
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # wrapped again
    """\
model = DDP(Net())
model = DDP(load_weights(model.module, "last.pt"))
model = load_weights(model.module, "best.pt")
model = DDP(model)
""",
    # wrapped by what is not known, as its name says
    """\
from elsewhere import wrap_again

model = DDP(Net())
model = wrap_again(model.module)
""",
    # another variable
    """\
model = DDP(Net())
ema = copy.deepcopy(model.module).eval()
raw_model = model.module
model = torch.compile(model)
""",
    # the training is over
    """\
model = DDP(Net())
for epoch in range(2):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    raw = model.module
model = load_weights(model.module, "best.pt")
model.eval()
""",
]


def find(project: Project) -> Iterator[Finding]:
    for discard in discards(project):
        message = f"{ast.unparse(discard.target)} loses its wrapper here, and is trained without it"
        yield found(RULE, discard.scope.source, discard.statement, message)
