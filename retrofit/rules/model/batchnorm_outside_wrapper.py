"""RF214 batchnorm-outside-wrapper: a model that training only calls takes its statistics from one rank's samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for, is_own
from retrofit.analysis.edits import insert_after
from retrofit.analysis.flow.assignments import assignments_to, upstream
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.drawn import builders_of_value
from retrofit.training.data.loaders import TRAIN
from retrofit.training.model.layers import has_batchnorm_layers
from retrofit.training.model.models import run_by_training
from retrofit.training.model.modules import is_layer, is_module, is_part
from retrofit.training.model.places import place_after
from retrofit.training.placement import after_variable
from retrofit.training.torch_api.modules import MODULE_PACKAGES, SYNC_BATCHNORM, UPDATES_BATCHNORM

RULE = CATALOG["RF214"]
NETS = """\
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))

    def forward(self, x):
        return self.layers(x)


"""
LOOP = """\
for images, labels in loader:
    with torch.no_grad():
        targets = teacher(images)
    (model(images) - targets).square().mean().backward()
"""
STEPS = """\
for images, labels in loader:
    criterion(model(images), labels).backward()
"""
UPDATE = """\
averaged = torch.optim.swa_utils.AveragedModel(Normed())  # RF214
torch.optim.swa_utils.update_bn(loader, averaged)
"""
INVALID = [
    NETS + STEPS + UPDATE,
    NETS + "model = rd.distribute_model(Normed())\nteacher = Normed()  # RF214\n" + LOOP,
    NETS + "teacher = Normed()  # RF214\nfor p in teacher.parameters():\n    p.requires_grad = False\n" + LOOP,
    NETS
    + "teacher = Normed()\nteacher.eval()\nteacher.train()\n".replace("Normed()\n", "Normed()  # RF214\n", 1)
    + LOOP,
]
VALID = [
    NETS + "teacher = Normed()\nteacher.eval()\n" + LOOP,
    NETS + "teacher = Normed().eval()\n" + LOOP,
    "teacher = nn.Linear(4, 2)\n" + LOOP,
    # a copy of what is synchronised already
    "import copy\n\n\n" + NETS + "model = rd.distribute_model(Normed())\nteacher = copy.deepcopy(model)\n" + LOOP,
    # an object of the project, which is not a module
    NETS
    + "class Log:\n    def __init__(self):\n        self.net = Normed()\n\n"
    + "    def __call__(self, x):\n        pass\n\n\n"
    + "log = Log()\nfor images, labels in loader:\n    log(images)\n    model(images).sum().backward()\n",
    # statistics over batches that every rank takes whole
    NETS + STEPS + UPDATE.replace("loader, averaged", "DataLoader(dataset, 4), averaged").replace("  # RF214", ""),
    NETS + "teacher = Normed()\nteacher = rd.model.convert_sync_batchnorm(teacher)\n" + LOOP,
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    updated = _updated(project)
    for variable, (node, scope) in (_only_called(project) | updated).items():
        if variable in updated:
            if _has_synchronised(project, variable):
                continue
        elif not has_batchnorm_layers(project.analysis, node, scope) or _is_fixed(project, variable):
            continue
        place = after_variable(project.analysis, variable, project.paths)
        message = f"{variable} is called in training mode, and takes its BatchNorm statistics from one rank's samples"
        if place is None:
            refusal = f"{variable} is set in several functions, so no place comes after all of them"
            yield found(RULE, scope.source, node, message, refusal=refusal, kind="model-of-several-functions")
            continue
        line = f"{variable} = rd.model.convert_sync_batchnorm({variable})"
        yield found(RULE, *place, message, [insert_after(*place, [line])])


def _only_called(project: Project) -> dict[Variable, tuple[ast.expr, Scope]]:
    """Return the variables of models that the training calls and does not train, each with such a place."""
    analysis, batches = project.analysis, project.nodes_in_batches
    trained = {v for model in project.models for v in {model.variable} | upstream(analysis, model.variable)}
    runs = {call.call for model in project.models for call in model.calls}
    found: dict[Variable, tuple[ast.expr, Scope]] = {}
    for call, node in run_by_training(analysis, project.paths):
        is_model = any(is_layer(analysis, value) for value in analysis.evaluate(node, call.scope))
        is_model |= any(name.startswith(MODULE_PACKAGES) for name in analysis.named(node, call.scope))
        variables = variables_of(analysis, node, call.scope) if call.call in batches and is_model else set()
        owner = call.scope.enclosing_class()
        is_own_part = isinstance(node, ast.Attribute) or is_own(node, call.scope)  # self.layer, or self.method()
        is_in_module = owner is not None and is_module(analysis, Instance(owner)) and is_own_part
        if is_in_module or any(is_part(analysis, variable) for variable in variables):
            continue  # a part of a module, whatever it was called before
        for variable in variables:
            is_trained = ({variable} | upstream(analysis, variable)) & trained
            is_of_any = call.call in runs and not assignments_to(analysis, variable)  # a parameter
            if not is_trained and not is_of_any and variable.key is None:
                found.setdefault(variable, (node, call.scope))
    return found


def _updated(project: Project) -> dict[Variable, tuple[ast.expr, Scope]]:
    """Return the variables of models whose statistics update_bn() takes from a loader that the training draws from."""
    analysis = project.analysis
    trained = {
        variable for model in project.models for variable in {model.variable} | upstream(analysis, model.variable)
    }
    sharded = {builder for loader in project.loaders if TRAIN in loader.roles for builder in loader.builders}
    found: dict[Variable, tuple[ast.expr, Scope]] = {}
    for call, scope in calls_named(analysis, UPDATES_BATCHNORM):
        loader, model = (argument_for(call, ["loader", "model"], name) for name in ("loader", "model"))
        if loader is None or model is None or not sharded & builders_of_value(analysis, loader, scope):
            continue
        found.update({v: (model, scope) for v in variables_of(analysis, model, scope) - trained if v.key is None})
    return found


def _has_synchronised(project: Project, variable: Variable) -> bool:
    """Return whether a model has synchronised layers, or is a copy of one that has."""
    values = [(a.value, a.scope) for a in assignments_to(project.analysis, variable) if isinstance(a.value, ast.Call)]
    return any(
        project.analysis.called(value, scope) & SYNC_BATCHNORM or _is_copy(project, value, scope)
        for value, scope in values
    )


def _is_fixed(project: Project, variable: Variable) -> bool:
    """Return whether a model is evaluated only, has synchronised layers, or is a copy of one that has."""
    analysis = project.analysis
    if _has_synchronised(project, variable):
        return True
    loops = project.nodes_in_loops
    values = [(a.value, a.scope) for a in assignments_to(analysis, variable) if isinstance(a.value, ast.Call)]
    is_evaluated = any(isinstance(part, ast.Attribute) and part.attr == "eval" for v, _ in values for part in walk(v))
    for node, scope in reached_calls(analysis):
        if not isinstance(node.func, ast.Attribute):
            continue
        name, given = node.func.attr, [a.value for a in node.args if isinstance(a, ast.Constant)]
        if name not in ("eval", "train") or variable not in variables_of(analysis, node.func.value, scope):
            continue
        if name == "train" and given != [False]:
            return False
        is_evaluated |= node not in loops
    return is_evaluated


def _is_copy(project: Project, value: ast.Call, scope: Scope) -> bool:
    """Return whether this copies a model that is wrapped already."""
    for model in project.models:
        place = place_after(project, model, project.paths)
        given = {variable for part in value.args for variable in variables_of(project.analysis, part, scope)}
        if place is None or model.variable not in given or project.analysis.scope_at(*place) is not scope:
            continue
        if place[1].lineno < value.lineno:
            return True
    return False
