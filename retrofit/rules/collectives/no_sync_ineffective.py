"""RF203 no-sync-ineffective: gradients are accumulated, and averaged over the processes in every batch all the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.steps.accumulation import Step, steps_in
from retrofit.training.torch_api.modules import NO_SYNC

RULE = CATALOG["RF203"]
INVALID = [
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
""",
    """\
model = DDP(Net())
for images, labels in loader:
    loss = criterion(model(images), labels)
    with model.no_sync():
        loss.backward()
    optimizer.step()
""",
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    if i % 4 == 3 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
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
    # every batch ends with a step
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    optimizer.step()
    if i % 4 == 0:
        print(i)
""",
    # another way to switch the averaging off
    """\
model = DDP(Net())
for i, (images, labels) in enumerate(loader):
    model.require_backward_grad_sync = i % 4 == 3
    criterion(model(images), labels).backward()
    if i % 4 == 3:
        optimizer.step()
""",
    # each step has a backward call of its own: two optimizers in turn
    """\
critic = DDP(Net())
model = DDP(Net())
critic_optimizer = optim.SGD(critic.parameters(), lr=0.1)
for i, (images, labels) in enumerate(loader):
    critic(images).mean().backward()
    critic_optimizer.step()
    if i % 5 == 0:
        model(images).mean().backward()
        optimizer.step()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.wrapping.sites:
        return
    used = False
    for node, scope in reached_nodes(project.analysis):
        used = used or (isinstance(node, ast.Attribute) and node.attr in NO_SYNC)
        if isinstance(node, ast.With) and any(_is_no_sync(project, item.context_expr, scope) for item in node.items):
            inside = [(part, scope) for statement in node.body for part in walk(statement)]
            if _backward(inside) is not None and not any(_may_run_model(project, *pair) for pair in inside):
                message = "no_sync around backward alone does nothing: DDP decides in the forward pass"
                yield found(RULE, scope.source, node.items[0].context_expr, message)
    if used:
        return
    steps = list(steps_in(project.analysis, project.optimizers, project.in_batches))
    for step in steps:
        nodes = [(node, scope) for node, scope in project.in_batches if scope is step.scope]
        call = _backward(nodes)
        runs_wrapped = any(
            isinstance(node, ast.Call) and project.wrapping.wrapped(node.func, scope) for node, scope in nodes
        )
        if call is not None and runs_wrapped and _is_only_one(step, nodes):
            message = "gradients are averaged in every batch, though only some end with a step"
            yield found(RULE, step.scope.source, call, message)
            return


def _is_only_one(step: Step, nodes: list[tuple[ast.AST, Scope]]) -> bool:
    """Return whether there is one backward call, before the test for the one step: no turns of several optimizers."""
    calls = [node for node, _ in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    backward = [call for call in calls if call.func.attr == "backward"]  # type: ignore[attr-defined]
    stepping = [call for call in calls if ast.dump(call.func) == ast.dump(step.call.func)]
    return len(backward) == 1 and len(stepping) == 1 and step.test not in step.scope.source.ancestors(backward[0])


def _is_no_sync(project: Project, context: ast.expr, scope: Scope) -> bool:
    values = project.analysis.evaluate(context, scope)
    calls = [value.call for value in values if isinstance(value, Result)]
    functions = [call.func for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "no_sync"]
    return any(project.wrapping.wrapped(function.value, scope) for function in functions)


def _backward(nodes: list[tuple[ast.AST, Scope]]) -> ast.Call | None:
    for node, _ in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            return node
    return None


def _may_run_model(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a call runs the wrapped model, or a function of the project, which may."""
    if not isinstance(node, ast.Call):
        return False
    if project.wrapping.wrapped(node.func, scope) is not None:
        return True
    return bool(project.analysis.functions_called(node, scope))
