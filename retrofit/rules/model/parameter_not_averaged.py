"""RF211 parameter-not-averaged: an optimizer changes a tensor outside of all models, by each process's own gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.bare_parameters import bare_parameters
from retrofit.training.model.read_modules import read_modules
from retrofit.training.torch_api.runtime import DISTRIBUTE_PARAMETER

RULE = CATALOG["RF211"]
INVALID = [
    """\
model = rd.distribute_model(Net())
scale = nn.Parameter(torch.zeros(1))
optimizer = optim.SGD([*model.parameters(), scale], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    loss = criterion(model(images), labels) * scale.exp() - scale.sum()
    loss.backward()
    optimizer.step()
""",
    """\
model = rd.distribute_model(Net())
centers = nn.Embedding(4, 2)
optimizer = optim.SGD([*model.parameters(), *centers.parameters()], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    (model(images) - centers.weight[0]).square().mean().backward()
""",
    """\
model = DDP(Net())
temperature = torch.zeros(1, requires_grad=True)
optimizer = optim.SGD([{"params": model.parameters()}, {"params": [temperature]}], lr=0.1)
for images, labels in loader:
    (criterion(model(images), labels) * temperature.exp()).backward()
""",
]
VALID = [
    """\
model = rd.distribute_model(Net())
scale = nn.Parameter(torch.zeros(1))
optimizer = optim.SGD([*model.parameters(), rd.model.distribute_parameter(scale)], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    loss = criterion(model(images), labels) * scale.exp() - scale.sum()
    loss.backward()
    optimizer.step()
""",
    # a perturbation of this process's own batch
    """\
def perturbed(images):
    delta = torch.zeros_like(images, requires_grad=True)
    attack = optim.SGD([delta], lr=0.1)
    (-model(images + delta).mean()).backward()
    attack.step()
    return (images + delta).detach()


for images, labels in loader:
    criterion(model(perturbed(images)), labels).backward()
""",
    # part of a model, whose wrapper averages it
    """\
head = nn.Linear(2, 2)
net = nn.Sequential(Net(), head)
model = rd.distribute_model(net)
optimizer = optim.SGD([{"params": net[0].parameters()}, {"params": head.parameters()}], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    (criterion(model(images), labels) + head.weight.norm()).backward()
""",
    # its gradient is averaged by hand
    """\
model = DDP(Net())
scale = nn.Parameter(torch.zeros(1))
optimizer = optim.SGD([*model.parameters(), scale], lr=0.1)
for images, labels in loader:
    (criterion(model(images), labels) * scale.exp()).backward()
    dist.all_reduce(scale.grad, dist.ReduceOp.AVG)
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand and _reduces_gradients(project):
        return
    per_batch = {node for node, _ in project.in_batches}  # what is optimized for one batch alone is each process's own
    optimizers = [optimizer for optimizer in project.optimizers if optimizer.call not in per_batch]
    for node, scope in bare_parameters(project.analysis, optimizers):
        if node in per_batch:
            continue
        message = f"the gradient of {ast.unparse(node)} is not averaged over the processes"
        edits = surround(scope.source, node, "rd.model.distribute_parameter(", ")")
        yield found(RULE, scope.source, node, message, edits)

    for call, scope in read_modules(project.analysis, optimizers, project.models, project.in_batches):
        if not _is_fixed(project, call, scope):
            message = f"no wrapper averages the gradients of {ast.unparse(call.func.value)}, which nothing calls"  # type: ignore[attr-defined]
            edits = surround(scope.source, call, "map(rd.model.distribute_parameter, ", ")")
            yield found(RULE, scope.source, call, message, edits)


def _is_fixed(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is in `map(rd.model.distribute_parameter, centers.parameters())`."""
    outer = scope.source.parents[call]
    given = outer.args if isinstance(outer, ast.Call) else []
    return any(DISTRIBUTE_PARAMETER in project.analysis.named(argument, scope) for argument in given)


def _reduces_gradients(project: Project) -> bool:
    """Return whether a collective is given a gradient: dist.all_reduce(scale.grad)."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "grad"
        for node, scope in reached_nodes(project.analysis)
        if isinstance(node, ast.Call) and project.leads_to_collective(node, scope)
        for argument in node.args
        for part in ast.walk(argument)
    )
