"""RF207 wrapper-attribute: code that asks what the model is, or what is in it, and would be told about the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import call_through, surround
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import External, Instance, LocalClass
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.data_parallel import asked_for
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.modules import (
    ANY_MODULE,
    DATA_PARALLEL,
    DDP,
    MODEL_LIBRARIES,
    MODULE_PACKAGES,
    OF_ANY_MODULE,
    RUN_A_MODEL,
)

RULE = CATALOG["RF207"]
INVALID = [
    """\
content = {"arch": type(model).__name__}
""",
    """\
layers = list(model.children())  # RF207
if isinstance(model, (Net, nn.Linear)):  # RF207
    print("a model of ours")
names = [name for name, _ in model.named_modules()]  # RF207
traced = torch.jit.trace(model, torch.ones(1, 4))  # RF207
torch.jit.script(model).save("scripted.pt")  # RF207
""",
    """\
writer = rd.output.on_main_process(SummaryWriter, "log")
writer.add_graph(model, torch.ones(1, 4))
""",
    """\
model = DDP(Net())
content = {"arch": model.__class__.__name__}
""",
]
VALID = [
    """\
content = {"arch": type(rd.unwrap_model(model)).__name__}
""",
    # the wrapper has the weights of the model
    """\
names = [name for name, _ in model.named_parameters()]
size = sum(p.numel() for p in model.parameters())
""",
    # another object, or what every wrapper is, too
    """\
is_module = isinstance(model, nn.Module)
layers = [layer for layer in rd.unwrap_model(model).modules() if isinstance(layer, nn.Linear)]
content = {"optimizer": type(optimizer).__name__, "loss": criterion.__class__.__name__}
""",
    # a model that is scripted before it trains
    """\
model = torch.jit.script(model)
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # a script that wraps the model itself asks on purpose
    """\
model = DDP(Net())
inner = model.module if type(model) is DDP else model
layers = list(model.module.children())
""",
]


def find(project: Project) -> Iterator[Finding]:
    variables = {model.variable for model in project.models}
    for node, scope in reached_nodes(project.analysis).of(ast.Call, ast.Attribute):
        is_run = _runs_it(project, node, scope)
        model = node.args[0] if is_run and isinstance(node, ast.Call) else _asked(project, node, scope)
        is_by_hand = bool(project.wrapping.sites)
        if model is None or (is_by_hand and isinstance(scope.source.parents.get(node), ast.Compare)):
            continue  # a script that wraps itself asks `type(model) is DDP` because it wants to know
        is_wrapper = project.wrapping.wrapped(model, scope) is not None
        if not (is_wrapper if is_by_hand else variables_of(project.analysis, model, scope) & variables):
            continue
        source = scope.source
        if is_run and isinstance(node, ast.Call):
            edits = call_through(source, node, "rd.model.run_alone")
        elif project.analysis.named(model, scope) & DATA_PARALLEL:
            if asked_for(project.analysis, source.parents[node], scope) is not None:
                continue  # it asks for DataParallel, which is another rule's
            edits = surround(source, model, "rd.model.script_model(", ")")
        else:
            edits = surround(source, model, "rd.unwrap_model(", ")")
        yield found(RULE, source, node, "this would be told about the wrapper", edits)


def _runs_it(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this runs the model for a summary or a graph: `summary(model)`, `writer.add_graph(model, x)`.

    Or compiles it to a file, but not where the compiled one takes its place.
    """
    if not isinstance(node, ast.Call) or not node.args:
        return False
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "add_graph"
    runs = is_method or project.analysis.called(node, scope) & RUN_A_MODEL
    return bool(runs) and not _replaces_model(project, node, scope)


def _asked(project: Project, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return the expression of the model in `type(model)`, `isinstance(model, Net)` and `model.children()`."""
    if isinstance(node, ast.Attribute) and node.attr in OF_ANY_MODULE:
        return node.value
    if isinstance(node, ast.Call) and len(node.args) == 1 and project.analysis.called(node, scope) == {"type"}:
        return node.args[0]
    if isinstance(node, ast.Call) and len(node.args) == 2 and project.analysis.called(node, scope) == {"isinstance"}:
        return node.args[0] if _is_of_models(project, node.args[1], scope) else None
    return None


def _replaces_model(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether the result of a call is put where a model is: `model = torch.jit.script(model)`."""
    statement = scope.source.parents[call]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    variables = {model.variable for model in project.models}
    return any(variables_of(project.analysis, target, scope) & variables for target in targets)


def _is_of_models(project: Project, kind: ast.expr, scope: Scope) -> bool:
    """Return whether this is a class of models, or a tuple of them, that no wrapper is of: not nn.Module itself."""
    parts = kind.elts if isinstance(kind, (ast.Tuple, ast.List)) else [kind]
    values = [value for part in parts for value in project.analysis.evaluate(part, scope)]
    names = {value.name for value in values if isinstance(value, External)}
    if names & (DATA_PARALLEL | DDP | ANY_MODULE):
        return False
    is_own = any(isinstance(v, LocalClass) and is_module(project.analysis, Instance(v.scope)) for v in values)
    return is_own or any(name.startswith((*MODULE_PACKAGES, *MODEL_LIBRARIES)) for name in names)
