"""RF201 wrapper-bypassed: the loss is computed by the model inside DDP, not by DDP."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.distribution import Site
from retrofit.training.model.discarded_wrappers import discards
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.layers import model_of
from retrofit.training.model.modules import is_layer

RULE = CATALOG["RF201"]
INVALID = [
    """\
net = Net()
model = DDP(net)
for images, labels in loader:
    loss = criterion(net(images), labels)
    loss.backward()
    optimizer.step()
""",
    """\
model = DDP(Net())
for images, labels in loader:
    criterion(model.module(images), labels).backward()  # RF201
    optimizer.step()
""",
    """\
class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 2)])

    def score(self, images):
        return self.layers[0](images).sum(1)


net = Layered()
model = DDP(net)
for images, labels in loader:
    loss = criterion(net.layers[0](images), labels) + net.score(images).mean()  # RF201
    loss.backward()
""",
]
VALID = [
    """\
net = Net()
model = DDP(net)
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
""",
    # without gradients
    """\
teacher, net = Net(), Net()
wrapped, model = DDP(teacher), DDP(net)
for images, labels in loader:
    with torch.no_grad():
        targets = teacher(images)
    criterion(model(images), targets).backward()
""",
    # next to a call of the wrapper, which averages these gradients too
    """\
net = Net()
model = DDP(net)
for images, labels in loader:
    loss = criterion(model(images), labels) + net(labels).square().mean()
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.wrapping.sites:
        return
    calls = [pair for pair in project.in_batches if isinstance(pair[0], ast.Call)]
    calls = [(node, scope) for node, scope in calls if has_gradients(project.analysis, scope, node)]
    # If a forward pass goes through the wrapper too, the gradients of other uses are averaged with the rest.
    through = {project.wrapping.wrapped(node.func, scope) for node, scope in calls}  # type: ignore[attr-defined]
    for node, scope in calls:
        assert isinstance(node, ast.Call)
        site = None if isinstance(scope.source.parents[node], ast.Expr) else _bypassed(project, node.func, scope)
        if site is not None and site not in through and not _is_discarded(project, node.func, scope):
            message = f"{ast.unparse(node.func)} goes past the wrapper, so its gradients are not averaged"
            yield found(RULE, scope.source, node, message)


def _is_discarded(project: Project, function: ast.expr, scope: Scope) -> bool:
    """Return whether a variable lost its wrapper, which is a finding of its own."""
    lost = {discard.variable for discard in discards(project)}
    return any((variable.scope, variable.name) in lost for variable in variables_of(project.analysis, function, scope))


def _bypassed(project: Project, function: ast.expr, scope: Scope) -> Site | None:
    """Return the wrapping whose model is called as `net(x)`, `model.module(x)`, `net.encoder(x)`, `net.loss(x)`."""
    site = project.wrapping.bare(function, scope)
    if site is not None:
        return site
    part = function.value if isinstance(function, ast.Subscript) else function  # net.layers[0](x)
    site = project.wrapping.bare(part.value, scope) if isinstance(part, ast.Attribute) else None
    if site is None:
        return None
    assert isinstance(part, ast.Attribute)
    values = project.analysis.evaluate(model_of(site), site.scope)
    parts = [found for value in values for found in project.analysis.members(value, part.attr)]
    return site if any(_runs_layers(project, found) for found in parts) else None


def _runs_layers(project: Project, value: Value) -> bool:
    """Return whether a value is a layer, or a method in which the model calls its own layers or itself."""
    if not isinstance(value, LocalFunction) or value.receiver is None:
        return is_layer(project.analysis, value)
    calls = own_nodes(value.node).of(ast.Call)
    return any(_is_own(call.func) and _is_layer(project, call.func, value.scope) for call in calls)


def _is_own(function: ast.expr) -> bool:
    """Return whether this begins with `self`: whatever a method calls its first parameter."""
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "self"


def _is_layer(project: Project, function: ast.expr, scope: Scope) -> bool:
    is_self = isinstance(function, ast.Name)
    return is_self or any(is_layer(project.analysis, value) for value in project.analysis.evaluate(function, scope))
