"""RF209 model-not-wrapped: nothing averages the gradients."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Sequence

from retrofit.analysis.calls import is_method
from retrofit.analysis.edits import block_of, insert_after, insert_before
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.variables import Variable, assignments_to, first_alias, variables_of
from retrofit.analysis.scopes import FUNCTIONS, Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalClass
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.loops import Frame, Path
from retrofit.training.model.entry_points import entry_points, steps_inside
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.models import FORWARD, Model
from retrofit.training.model.modules import is_module
from retrofit.training.placement import after_variable, first_statement
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS

RULE = CATALOG["RF209"]
Place = tuple[Source, ast.stmt, str]  # before which statement, and how the attribute is called there
INVALID = [
    """\
model = Net().cuda()
""",
    """\
encoder, model = Net(), rd.distribute_model(nn.Linear(2, 2))
optimizer = optim.SGD([*encoder.parameters(), *model.parameters()], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    criterion(model(encoder(images)), labels).backward()
""",
    """\
class Scorer(Net):
    def score(self, images):
        return self(images).sum()


model = Scorer()  # RF209
for images, labels in loader:
    model.score(images).backward()
""",
]
VALID = [
    """\
model = Net().cuda()
model = rd.distribute_model(model)
""",
    # by torch's own wrapper, in a function
    """\
def build():
    return DDP(Net().cuda())


model = build()
""",
    # no optimizer has the weights of the teacher
    """\
teacher = Net()
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for images, labels in loader:
    criterion(model(images), teacher(images)).backward()
""",
    # wrapped by hand; this name is only called without gradients
    """\
net = Net()
model = DDP(net)
optimizer = optim.SGD(net.parameters(), lr=0.1)
for images, labels in loader:
    with torch.no_grad():
        before = net(images)
    criterion(model(images) - before, labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    for model in project.models:
        if is_wrapped(project, model) or _only_looks(project, model):
            continue
        methods = entry_points(project, model)
        place = after_variable(project.analysis, model.variable, project.paths)
        call = model.calls[0]
        message = f"the gradients of {model.variable} are not averaged over the processes"
        stepping = steps_inside(project, model)
        if stepping and not FORWARD & {call.method for call in model.calls}:
            refusal = f"{model.variable} is trained by its own {', '.join(stepping)}, which calls backward inside it"
            yield found(RULE, call.scope.source, call.call, message, refusal=refusal, kind="trained-by-methods")
            continue
        if place is None:
            yield _before_training(project, model, message, methods)
            continue
        source, statement = place
        if _is_made_elsewhere(project, model, statement):
            refusal = f"{model.variable} is taken out of something in every epoch, and would be wrapped each time"
            yield found(
                RULE, source, statement, f"{model.variable} is not wrapped", refusal=refusal, kind="model-per-epoch"
            )
            continue
        line = _wrapping(str(model.variable), methods)
        edits = [insert_after(source, statement, [line])]
        again = dict.fromkeys([*_rebuilt(project, model, statement), *_made_again(project, model, statement)])
        edits += [insert_after(source, later, [line]) for later in again]
        yield found(RULE, source, statement, message, edits)


def _wrapping(name: str, methods: Sequence[str]) -> str:
    option = f", methods={json.dumps(methods)}" if methods else ""
    return f"{name} = rd.distribute_model({name}{option})"


def _before_training(project: Project, model: Model, message: str, methods: Sequence[str]) -> Finding:
    """Return the finding of a model that several functions set: where training begins, it holds what is trained."""
    in_loops = {node for node, _ in project.in_loops}
    places = _places_before_training(project.analysis, model, project.paths, in_loops)
    source, node = model.calls[0].scope.source, model.calls[0].call
    if isinstance(places, str):
        return found(RULE, source, node, message, refusal=places, kind="model-of-several-functions")
    edits = [insert_before(file, first, [_wrapping(name, methods)]) for file, first, name in places]
    return found(RULE, source, node, message, edits)


def _rebuilt(project: Project, model: Model, first: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the places after which another training begins, of a model that was made again after the first one."""
    seen = {first}
    training = {frame.scope.source.statement(frame.node) for path in project.paths for frame in path.frames}
    for path in project.paths:
        place = after_variable(project.analysis, model.variable, [path])
        if place is None or place[1] in seen or place[1] in training:
            continue
        given = [a.statement for a in assignments_to(project.analysis, model.variable) if a.value is not None]
        inside = set(ast.walk(place[1]))
        if any(statement in inside and statement not in training for statement in given):
            seen.add(place[1])
            yield place[1]


def _made_again(project: Project, model: Model, first: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the last statement that makes the model again, in a loop of several trainings."""
    analysis, batches = project.analysis, {node for node, _ in project.in_batches}
    loops = {node for node, _ in project.in_loops} - batches
    given = [a for a in assignments_to(analysis, model.variable) if not a.only_fills and a.statement in loops]
    if first in loops or not any(_is_constructed(analysis, a.value, a.scope) for a in given):
        return
    blocks: dict[int, ast.stmt] = {}
    for assignment in sorted(given, key=lambda a: a.statement.lineno):
        block = block_of(assignment.scope.source, assignment.statement)
        if _is_constructed(analysis, assignment.value, assignment.scope) or id(block) in blocks:
            blocks[id(block)] = assignment.statement
    yield from blocks.values()


def _is_constructed(analysis: Analysis, value: ast.expr | None, scope: Scope) -> bool:
    """Return whether an expression makes a model: Net(), Net().to(device)."""
    if not isinstance(value, ast.Call):
        return False
    made = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
    classes = (kind for part in made for kind in analysis.evaluate(part.func, scope))
    return any(isinstance(kind, LocalClass) and is_module(analysis, Instance(kind.scope)) for kind in classes)


def _is_made_elsewhere(project: Project, model: Model, place: ast.stmt) -> bool:
    """Return whether a model gets its name in the training loop, without being made there."""
    given = [a.statement for a in assignments_to(project.analysis, model.variable)]
    made = any(isinstance(part, ast.Call) for s in given if isinstance(s, ast.Assign) for part in ast.walk(s.value))
    return place in {node for node, _ in project.in_loops} and not made


def _only_looks(project: Project, model: Model) -> bool:
    """Return whether a script that is distributed by hand runs a model by this name without gradients alone."""
    if not project.distribution.is_by_hand:
        return False
    return not any(has_gradients(project.analysis, call.scope, call.call) for call in model.calls)


def is_wrapped(project: Project, model: Model) -> bool:
    """Return whether what is called in training is the wrapper."""
    analysis = project.analysis
    if any(analysis.named(call.call.func, call.scope) & AVERAGING_WRAPPERS for call in model.calls):
        return True
    given = [
        assignment for assignment in assignments_to(analysis, model.variable) if isinstance(assignment.value, ast.Call)
    ]
    return any(analysis.called(a.value, a.scope) & AVERAGING_WRAPPERS for a in given)  # type: ignore[arg-type]


def _places_before_training(
    analysis: Analysis, model: Model, paths: list[Path], in_loops: Collection[ast.AST]
) -> list[Place] | str:
    """Return the places that every training goes through, after which each call of the model is by its attribute.

    Or why there are none: another object holds the model too, or the training puts another one in its place.
    """
    variable = model.variable
    if not variable.is_attribute or variable.key is not None:
        return f"{variable} is set in several functions, so no place comes after all of them"
    for given in assignments_to(analysis, variable):
        if given.value is not None and given.statement in in_loops:
            return f"{variable} is set again while it trains, at {given.scope.source.place(given.statement)}"
    for call in model.calls:
        if not _is_by_attribute(analysis, variable, call.call.func, call.scope):
            held = f"{call.scope.source.place(call.call)} calls what another object was given of it before it trains"
            return f"{variable} is set in several functions, and {held}"
    found: dict[Place, None] = {}
    for path in paths:
        frame = next((frame for frame in reversed(path.frames) if _holds(analysis, variable, frame.scope)), None)
        place = _place_in(analysis, variable, frame) if frame is not None else None
        if place is None:
            return f"{variable} is set in several functions, and no method of its object comes after all of them"
        found[place] = None
    return list(found)


def _holds(analysis: Analysis, variable: Variable, scope: Scope) -> bool:
    """Return whether a function is a method of an object that has the attribute."""
    return is_method(scope) and variables_of(analysis, _attribute(variable, scope), scope) == {variable}


def _attribute(variable: Variable, scope: Scope) -> ast.Attribute:
    assert isinstance(scope.node, FUNCTIONS)
    return ast.Attribute(ast.Name(parameters(scope.node)[0], ast.Load()), variable.name, ast.Load())


def _place_in(analysis: Analysis, variable: Variable, frame: Frame) -> Place | None:
    source = frame.scope.source
    statement = source.statement(frame.loops[-1] if frame.loops else frame.node)
    if first_alias(analysis, variable, frame.scope) < statement.lineno:
        if any(a.scope is frame.scope for a in assignments_to(analysis, variable)):
            return None
        statement = first_statement(frame.scope)
    return source, statement, ast.unparse(_attribute(variable, frame.scope))


def _is_by_attribute(analysis: Analysis, variable: Variable, function: ast.expr, scope: Scope) -> bool:
    """Return whether each call reads the attribute: `self.model(x)`, or `model(x)` with what a function was given."""
    if isinstance(function, ast.Name):
        found = scope.find(function.id)
        return found is not None and found[0].is_function
    if not isinstance(function, ast.Attribute) or function.attr != variable.name:
        return False
    owners = [v.scope for v in analysis.evaluate(function.value, scope) if isinstance(v, Instance)]
    return any(variable.scope in analysis.classes.mro(owner) for owner in owners)
