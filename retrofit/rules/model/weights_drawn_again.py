"""RF213 weights-drawn-again: a model that is wrapped gets new random weights, other ones on each process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.calls.graph import calls_in, functions_reached
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.draw_together import draw_together
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.modules import is_module
from retrofit.training.placement import after_variable
from retrofit.training.torch_api.modules import CHILDREN, DRAWS_WEIGHTS, INIT_PACKAGE, MODULES, PARAMETERS, SAME_OBJECT
from retrofit.training.torch_api.randomness import DRAWS_IN_PLACE
from retrofit.training.torch_api.runtime import DRAW_TOGETHER

RULE = CATALOG["RF213"]
INVALID = [
    """\
class Resettable(Net):
    def reset_parameters(self):
        self.layer.reset_parameters()


model = rd.distribute_model(Resettable())
for run in range(2):
    model.reset_parameters()  # RF213
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    """\
def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)


model = rd.distribute_model(Net())
for run in range(2):
    model.apply(initialise)  # RF213
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    """\
model = rd.distribute_model(Net())
for run in range(2):
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # RF213
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
]
VALID = [
    # the wrapper gives all processes the weights of rank 0
    """\
model = Net()
for parameter in model.parameters():
    nn.init.normal_(parameter)
model = rd.distribute_model(model)
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    """\
def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)


model = rd.distribute_model(Net())
for run in range(2):
    rd.data.draw_together(model.apply, initialise)
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    # nothing is drawn
    """\
model = rd.distribute_model(Net())
for run in range(2):
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
]
LISTS = PARAMETERS | CHILDREN | MODULES | SAME_OBJECT  # methods that give a model's parts, or itself
DRAWING_METHODS = DRAWS_WEIGHTS | DRAWS_IN_PLACE
FIXED = frozenset({"zeros_", "ones_", "constant_", "eye_", "dirac_"})  # functions of torch.nn.init that draw nothing


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return
    analysis = project.analysis
    names = {model.variable: {model.variable} | upstream(analysis, model.variable) for model in project.models}
    later = {variable: _runs_after_wrapping(project, variable) for variable in names}
    training: set[ast.AST] = {frame.scope.node for path in project.paths for frame in path.frames}
    calls = []
    for node, scope in dict.fromkeys(reached_calls(analysis)):
        if _is_of_module(analysis, scope):
            continue
        drawn = _models_drawn(analysis, node, scope, training)
        if any(drawn & names[variable] and (node, scope) in later[variable] for variable in names):
            calls.append((node, scope))
    inside = {function.node for function in functions_reached(analysis, calls)}
    for node, scope in calls:
        if scope.node not in inside:
            message = "each process draws weights of its own for the model, which is wrapped already"
            yield found(RULE, scope.source, node, message, draw_together(node, scope))


def _runs_after_wrapping(project: Project, variable: Variable) -> set[tuple[ast.AST, Scope]]:
    """Return what runs after the statement that a model's wrapper comes after."""
    place = after_variable(project.analysis, variable, project.paths)
    if place is None:
        return set()
    source, statement = place
    inside = set(project.in_loops)
    if (statement, project.analysis.scope_at(source, statement)) in inside:  # made for each training
        inside = set()
    own = project.analysis.scope_at(source, statement)
    end = statement.end_lineno or statement.lineno
    after = {(node, own) for node in own_nodes(own.node) if getattr(node, "lineno", 0) > end}
    return inside | after


def _models_drawn(analysis: Analysis, call: ast.Call, scope: Scope, training: set[ast.AST]) -> set[Variable]:
    """Return the variables of which a call draws the weights: model.apply(initialise), nn.init.normal_(model.bias)."""
    names = analysis.called(call, scope)
    if DRAW_TOGETHER in names:
        return set()
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(name.startswith(INIT_PACKAGE) and name.rpartition(".")[2] not in FIXED for name in names):
        return set().union(*(_holders(analysis, part, scope) for part in given))
    if isinstance(call.func, ast.Attribute) and call.func.attr in DRAWING_METHODS:
        return _holders(analysis, call.func.value, scope)
    functions = [value for part in (call.func, *given) for value in analysis.evaluate(part, scope)]
    own = [value for value in functions if isinstance(value, LocalFunction)]
    if any(function.node in training for function in own) or not any(_draws(analysis, one, training) for one in own):
        return set()
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return set().union(*(_holders(analysis, part, scope) for part in (*owner, *given)))


def _draws(analysis: Analysis, function: LocalFunction, training: set[ast.AST]) -> bool:
    """Return whether a function, or one that it calls, draws weights, and trains nothing."""
    known: dict[ast.AST, bool] = analysis.fact("functions that draw weights", dict)
    if function.node not in known:
        known[function.node] = _is_drawing_function(analysis, function, training)
    return known[function.node]


def _is_drawing_function(analysis: Analysis, function: LocalFunction, training: set[ast.AST]) -> bool:
    reached = [function, *functions_reached(analysis, calls_in(function))]
    if any(one.node in training for one in reached):
        return False
    return any(
        _is_drawing(analysis, *place)
        for one in reached
        if getattr(one.node, "name", "") != "__init__"  # of another model
        for place in calls_in(one)
    )


def _is_drawing(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in DRAWS_WEIGHTS:
        return True
    names = analysis.called(call, scope)
    return any(name.startswith(INIT_PACKAGE) and name.rpartition(".")[2] not in FIXED for name in names)


def _holders(analysis: Analysis, node: ast.expr, scope: Scope) -> set[Variable]:
    """Return the variables that a part of a model is read from: `model` of model.head.weight.data, of its loop."""
    found: set[Variable] = set()
    while True:
        found |= variables_of(analysis, node, scope)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call) and last_name(node) in LISTS and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Name) and (loop := _loop_of(node, scope)) is not None:
            node = loop.iter
        else:
            return found


def _loop_of(node: ast.Name, scope: Scope) -> ast.For | None:
    """Return the loop around a name that gives it its value: `for parameter in model.parameters()`."""
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            return None
        if isinstance(outer, ast.For) and node not in set(walk(outer.iter)):
            names = {part.id for part in walk(outer.target) if isinstance(part, ast.Name)}
            if node.id in names:
                return outer
    return None


def _is_of_module(analysis: Analysis, scope: Scope) -> bool:
    """Return whether this is a method of a module, which the script calls as a whole."""
    return scope.parent is not None and is_module(analysis, Instance(scope.parent))
