"""RF211 parameter-not-averaged: an optimizer changes a tensor outside of all models, by each process's own gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import surround
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.operands import is_loop_variable
from retrofit.analysis.flow.reachability import reached_calls, reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import Places, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.models import Model
from retrofit.training.model.modules import is_module
from retrofit.training.optimizer.optimizers import Optimizer, parameter_owners
from retrofit.training.torch_api.modules import (
    INIT_PACKAGE,
    LAYER_PACKAGE,
    PARAMETER_CLASSES,
    PARAMETER_CONTAINERS,
    PARAMETERS_OF_LAYERS,
)
from retrofit.training.torch_api.runtime import DISTRIBUTE_PARAMETER
from retrofit.training.torch_api.tensors import CONVERTS, DRAWN, DRAWN_LIKE, FILLED, FILLED_LIKE, TENSOR_CLASSES

RULE = CATALOG["RF211"]
Node = tuple[ast.AST, Scope]
TENSORS = TENSOR_CLASSES | FILLED | FILLED_LIKE | DRAWN | DRAWN_LIKE | CONVERTS | {"Parameter"}
JOINING = {"list", "tuple", "itertools.chain", "filter", "iter"}
ENTRY = (None,)  # any entry of a list
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
model = rd.distribute_model(Net())
table = nn.Embedding(4, 2)
optimizer = optim.SGD([table.weight, *model.parameters()], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    (model(images) - F.embedding(labels, table.weight)).square().mean().backward()
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
    per_batch = project.nodes_in_batches  # what is optimized for one batch alone is each process's own
    optimizers = [optimizer for optimizer in project.optimizers if optimizer.call not in per_batch]
    for node, scope in _bare_parameters(project.analysis, optimizers):
        if node in per_batch or _is_of_called(project, node, scope):
            continue
        message = f"the gradient of {ast.unparse(node)} is not averaged over the processes"
        edits = surround(scope.source, node, "rd.model.distribute_parameter(", ")")
        yield found(RULE, scope.source, node, message, edits)

    for call, scope in _read_modules(project.analysis, optimizers, project.models, project.in_batches):
        if not _is_fixed(project, call, scope):
            message = f"no wrapper averages the gradients of {ast.unparse(call.func.value)}, which nothing calls"  # type: ignore[attr-defined]
            edits = surround(scope.source, call, "map(rd.model.distribute_parameter, ", ")")
            yield found(RULE, scope.source, call, message, edits)


def _is_of_called(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is the weight of a layer that is called, or part of something that may be: `emb.weight`."""
    if not _is_weight(project.analysis, node, scope):
        return False
    analysis = project.analysis
    called = {v for model in project.models for v in ({model.variable} | upstream(analysis, model.variable))}
    owners = variables_of(analysis, node.value, scope)  # type: ignore[attr-defined]
    is_part = any(_is_layer(analysis, owner) or _is_handed_on(analysis, owner) for owner in owners)
    return not owners or bool(owners & called) or is_part


def _is_weight(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is the weight of a layer of torch.nn."""
    if not isinstance(node, ast.Attribute) or node.attr not in PARAMETERS_OF_LAYERS:
        return False
    values = analysis.evaluate(node.value, scope)
    return any(isinstance(value, Result) and value.builder.startswith(LAYER_PACKAGE) for value in values)


def _is_fixed(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is in `map(rd.model.distribute_parameter, centers.parameters())`."""
    outer = scope.source.parents[call]
    given = outer.args if isinstance(outer, ast.Call) else []
    return any(DISTRIBUTE_PARAMETER in project.analysis.named(argument, scope) for argument in given)


def _reduces_gradients(project: Project) -> bool:
    """Return whether a collective is given a gradient: dist.all_reduce(scale.grad)."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "grad"
        for node, scope in reached_calls(project.analysis)
        if project.leads_to_collective(node, scope)
        for argument in node.args
        for part in walk(argument)
    )


def _bare_parameters(analysis: Analysis, optimizers: list[Optimizer]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the expressions of tensors that belong to no model, where they are put among an optimizer's parameters."""
    starts = [Origin(o.parameters, o.scope, ENTRY) for o in optimizers if o.parameters is not None]
    for node, scope in reached_calls(analysis):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_param_group":
            group = argument_for(node, ["param_group"], "param_group")
            starts += [Origin(group, scope)] if group is not None else []
    found = [o for o in origins(analysis, starts, partial(_parts, analysis)) if _is_variable_of_tensor(analysis, o)]
    yield from dict.fromkeys((o.node, o.scope) for o in found if not _is_of_module(analysis, o))  # type: ignore[misc]


def _parts(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    """Return what a list or a group is put together from; None for what has it from elsewhere."""
    node = origin.node
    if isinstance(node, ast.AugAssign):
        return [origin.to(node.value)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        given = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "params"]
        return [origin.to(part, keys=ENTRY) for part in given]
    if isinstance(node, ast.Call):
        return _parts_of_call(analysis.called(node, origin.scope), node, origin)
    return () if _is_variable_of_tensor(analysis, origin) else None


def _parts_of_call(names: set[str], node: ast.Call, origin: Origin) -> list[Origin] | None:
    """Return what a call joins, or dict(params=...) holds; None for another call."""
    if names & JOINING:
        return [origin.to(part.value if isinstance(part, ast.Starred) else part) for part in node.args]
    given = [keyword.value for keyword in node.keywords if keyword.arg == "params"]
    return [origin.to(part, keys=ENTRY) for part in given] if "dict" in names else None


def _is_variable_of_tensor(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a name, an attribute or an entry holds a tensor; the variable of a loop only passes it on."""
    node, scope = origin.node, origin.scope
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    is_tensor = any(_is_tensor(value) for value in analysis.evaluate(node, scope)) or _is_weight(analysis, node, scope)
    return is_tensor and not is_loop_variable(analysis, node, scope)


def _is_of_module(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a tensor is an attribute of a module, whose wrapper averages its gradient."""
    if not isinstance(origin.node, ast.Attribute):
        return False
    return any(is_module(analysis, value) for value in analysis.evaluate(origin.node.value, origin.scope))


def _is_tensor(value: Value) -> bool:
    if not isinstance(value, Result) or value.receiver is not None:
        return False
    package, _, name = value.builder.rpartition(".")
    return package.partition(".")[0] == "torch" and name in TENSORS


def _read_modules(
    analysis: Analysis, optimizers: list[Optimizer], models: list[Model], in_batches: Places[Scope]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of `parameters()` that give an optimizer what such a module has."""
    called = {variable for model in models for variable in ({model.variable} | upstream(analysis, model.variable))}
    read: set[Variable] = set()
    given = [place for place in reached_nodes(analysis).of(ast.Attribute) if _is_given_away(analysis, *place)]
    for node, scope in (*in_batches.of(ast.Attribute, ast.Name), *given):
        if isinstance(node, ast.Attribute) and _is_parameter(analysis, node, scope):
            read |= variables_of(analysis, node.value, scope) - called
        elif _holds_parameters(analysis, node, scope):
            read |= variables_of(analysis, node, scope) - called
    read = {
        variable for variable in read if not _is_layer(analysis, variable) and not _is_handed_on(analysis, variable)
    }
    for optimizer in optimizers if read else ():
        for owner, scope in parameter_owners(analysis, optimizer):
            method = scope.source.parents[owner]
            call = scope.source.parents[method]
            if isinstance(call, ast.Call) and call.func is method and variables_of(analysis, owner, scope) & read:
                yield call, scope


def _is_given_away(analysis: Analysis, node: ast.Attribute, scope: Scope) -> bool:
    """Return whether a parameter is given to a function, or another name: train(model, table.weight)."""
    if not isinstance(node.ctx, ast.Load):
        return False
    outer = scope.source.parents[node]
    outer = scope.source.parents[outer] if isinstance(outer, ast.keyword) else outer
    if isinstance(outer, ast.Call):
        return outer.func is not node and not any(n.startswith(INIT_PACKAGE) for n in analysis.called(outer, scope))
    return isinstance(outer, (ast.Assign, ast.AnnAssign)) and outer.value is node


def _holds_parameters(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a variable is a nn.ParameterList or nn.ParameterDict, which nothing can call."""
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Result) and value.builder in PARAMETER_CONTAINERS for value in values)


def _is_parameter(analysis: Analysis, node: ast.Attribute, scope: Scope) -> bool:
    if node.attr in PARAMETERS_OF_LAYERS:
        return True
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Result) and value.builder in PARAMETER_CLASSES for value in values)


def _is_layer(analysis: Analysis, variable: Variable) -> bool:
    """Return whether a module is part of another, whose wrapper averages its gradients."""
    return variable.is_attribute and is_module(analysis, Instance(variable.scope))


def _is_handed_on(analysis: Analysis, variable: Variable) -> bool:
    """Return whether anything else gets hold of a module, perhaps to call it: Whole(encoder, decoder)."""
    for node, scope in reached_nodes(analysis).of(ast.Attribute, ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        is_read = name == variable.name and isinstance(node.ctx, ast.Load)
        is_part = (ast.Attribute, ast.Subscript)
        is_whole = is_read and not isinstance(scope.source.parents[node], is_part)
        if is_whole and variable in variables_of(analysis, node, scope):  # type: ignore[arg-type]
            return True
    return False
