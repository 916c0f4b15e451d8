"""RF202 no-sync-wrong-step: gradients are synchronised in another batch than the one that ends with a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.steps.accumulation import Cycle, cycle_of, steps_in

RULE = CATALOG["RF202"]
INVALID = [
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    with model.no_sync() if i % 4 != 0 else nullcontext():
        criterion(model(images), labels).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
""",
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    is_last = (i + 1) % 4 == 0
    with model.no_sync() if is_last else nullcontext():
        criterion(model(images), labels).backward()
    if is_last:
        optimizer.step()
""",
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    if i % 4:
        with model.no_sync():
            criterion(model(images), labels).backward()
    else:
        criterion(model(images), labels).backward()
    if i % 4 == 3:
        optimizer.step()
""",
]
VALID = [
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    is_last = (i + 1) % 4 == 0
    with nullcontext() if is_last else model.no_sync():
        criterion(model(images), labels).backward()
    if is_last:
        optimizer.step()
""",
    # i % 4 != 3 is the same as (i + 1) % 4 != 0
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    with model.no_sync() if i % 4 != 3 else nullcontext():
        criterion(model(images), labels).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
""",
    # cycles of different lengths are not compared
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    with model.no_sync() if i % 2 else nullcontext():
        criterion(model(images), labels).backward()
    if i % 4 == 0:
        optimizer.step()
""",
    # one step per epoch
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    with model.no_sync() if i + 1 < len(loader) else nullcontext():
        criterion(model(images), labels).backward()
    if i + 1 == len(loader):
        optimizer.step()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.wrapping.sites:
        return
    steps = list(steps_in(project.analysis, project.optimizers, project.in_batches))
    for node, scope in project.in_batches.of(ast.Attribute):
        if node.attr != "no_sync":
            continue
        if project.wrapping.wrapped(node.value, scope) is None:
            continue
        left_out = _left_out(project, node, scope)
        for step in steps:
            if left_out is None or (left_out[0].variable, left_out[0].length) != (
                step.cycle.variable,
                step.cycle.length,
            ):
                continue
            is_synchronised = (left_out[0] == step.cycle) is not left_out[1]
            if step.scope is scope and not is_synchronised:
                line = scope.source.place(step.call).line
                message = f"not synchronised in the batch that ends with the step in line {line}"
                yield found(RULE, scope.source, node, message)
                break


def _left_out(project: Project, node: ast.AST, scope: Scope) -> tuple[Cycle, bool] | None:
    """Return the cycle by which no_sync is used, and whether it is at its multiples (or everywhere else)."""
    inner: ast.AST = node
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            break
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            cycle = cycle_of(project.analysis, outer.test, scope)
            if cycle is not None:
                return cycle if is_in_body(outer, inner) else (cycle[0], not cycle[1])
        inner = outer
    return None
