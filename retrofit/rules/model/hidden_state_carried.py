"""RF210 hidden-state-carried: what a recurrent model remembers goes from one batch to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.loops import LoopNode

RULE = CATALOG["RF210"]
INVALID = [
    """\
hidden = torch.zeros(1, 8, 2)
for images, labels in loader:
    hidden = hidden.detach()
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    """\
state = None
for images, labels in loader:
    output, state = model(images, state)  # RF210
    criterion(output, labels).backward()
""",
    """\
hidden, cell = torch.zeros(2, 1, 8, 2)
for images, labels in loader:
    output, hidden, cell = model(images, hidden.detach(), cell)
    criterion(output, labels).backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    hidden = torch.zeros(1, 8, 2)
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    # made for each batch
    """\
for images, labels in loader:
    state = None
    for step in range(4):
        output, state = model(images[step], state)
    criterion(output, labels).backward()
""",
    # drawn with the batch
    """\
for images, labels, hidden in loader:
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    # it does not go into the next batch
    """\
hidden = torch.zeros(1, 8, 2)
for images, labels in loader:
    output, last = model(images, hidden)
    criterion(output, labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    called = {call.call for model in project.models for call in model.calls}
    seen: set[ast.AST] = set()
    for path in project.paths:
        loop, frame = path.loops[0]
        for call, name in _carried(loop, called):
            if call not in seen:
                seen.add(call)
                message = f"{name} is what the model remembers of the batch before"
                refusal = f"{name} is carried from batch to batch, so batches cannot be split by samples"
                yield found(RULE, frame.scope.source, call, message, refusal=refusal, kind="carried-state")


def _carried(loop: LoopNode, called: set[ast.Call]) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in `output, hidden = model(x, hidden)` where `hidden` comes from the last turn of the loop."""
    assignments = [node for node in ast.walk(loop) if isinstance(node, ast.Assign)]
    for node in assignments:
        if node.value not in called or not isinstance(node.targets[0], ast.Tuple):
            continue
        assert isinstance(node.value, ast.Call)
        names = {part.id for part in node.targets[0].elts if isinstance(part, ast.Name)}
        for name in sorted(names & {given.id for given in node.value.args if isinstance(given, ast.Name)}):
            inside = [other for other in assignments if name in _bound(other)]
            if all(name in _read(other.value) for other in inside) and name not in _read_targets(loop):
                yield node.value, name


def _bound(node: ast.Assign) -> set[str]:
    return {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}


def _read(node: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _read_targets(loop: LoopNode) -> set[str]:
    """Return the names that the loop itself, or one in it, gives a value."""
    loops = [node for node in ast.walk(loop) if isinstance(node, (ast.For, ast.AsyncFor))]
    return {part.id for inner in loops for part in ast.walk(inner.target) if isinstance(part, ast.Name)}
