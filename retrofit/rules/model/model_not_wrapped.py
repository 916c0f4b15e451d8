"""RF209 model-not-wrapped: nothing averages the gradients."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, block_of, insert_after, insert_before, replace, under_condition
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.assignments import assignments_to
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalClass
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.entry_points import entry_points, steps_inside
from retrofit.training.model.gradients import has_gradients
from retrofit.training.model.indirect.late_layers import late_layers
from retrofit.training.model.indirect.unseen_models import unseen_models
from retrofit.training.model.models import FORWARD, Model
from retrofit.training.model.modules import is_module
from retrofit.training.model.places import named_before, place_after, places_before_training
from retrofit.training.placement import condition_at
from retrofit.training.torch_api.modules import AVERAGING_WRAPPERS

RULE = CATALOG["RF209"]
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
    """\
import solvers

flow, model = Net(), rd.distribute_model(Net())
optimizer = optim.SGD([*flow.parameters(), *model.parameters()], lr=rd.scaled_lr(0.1))
for images, labels in loader:
    states = solvers.integrate(flow, images)  # RF209
    criterion(model(states), labels).backward()
""",
    """\
class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = None

    def forward(self, images):
        if self.head is None:
            self.head = nn.Linear(images.shape[1], 2)  # RF209
        return self.head(images)


model = Grown()
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    """\
class Grown(nn.Module):
    def make(self, features):
        for number, feature in enumerate(features):
            head = nn.Sequential(nn.Linear(feature.shape[1], 2))
            setattr(self, f"head_{number}", head)  # RF209

    def forward(self, images):
        if not hasattr(self, "head_0"):
            self.make([images])
        return self.head_0(images)


model = Grown()
for images, labels in loader:
    criterion(model(images), labels).backward()
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
    seen: set[ast.Call] = set()
    late = [] if project.distribution.is_by_hand else list(late_layers(project))
    for node, scope in late:
        refusal = "a layer is made in the forward pass, after the model is wrapped: nothing would average its gradients"
        yield found(RULE, scope.source, node, "no wrapper knows of this layer", refusal=refusal, kind="late-layers")
    for model in project.models if not late else ():
        if is_wrapped(project, model) or _only_looks(project, model):
            continue
        call = model.calls[0]
        message = f"the gradients of {model.variable} are not averaged over the processes"
        stepping = steps_inside(project, model)
        if stepping and (not model.own or not {*model.own, "forward"}.isdisjoint(stepping)):
            refusal = f"{model.variable} is trained by its own {', '.join(stepping)}, which calls backward inside it"
            yield found(RULE, call.scope.source, call.call, message, refusal=refusal, kind="trained-by-methods")
            continue
        place = place_after(project, model, project.paths)
        if place is None:
            yield _before_training(project, model, message)
            continue
        source, statement = place
        if _is_made_elsewhere(project, model, statement):
            refusal = f"{model.variable} is taken out of something in every epoch, and would be wrapped each time"
            yield found(
                RULE, source, statement, f"{model.variable} is not wrapped", refusal=refusal, kind="model-per-epoch"
            )
            continue
        again = dict.fromkeys([*_rebuilt(project, model, statement), *_made_again(project, model, statement)])
        edits = [_wrap_after(project, model, source, later) for later in (statement, *again)]
        yield found(RULE, source, statement, message, edits + list(_seen_by_hooks(model, seen)))
    yield from _of_unseen(project)


def _seen_by_hooks(model: Model, seen: set[ast.Call]) -> Iterator[Edit]:
    """Yield edits that call the parts of a model as such: `model.encoder(x)` for model.encoder.forward(x)."""
    for call in model.calls:
        function = call.call.func
        is_part = call.method not in FORWARD and isinstance(function, ast.Attribute) and function.attr == "forward"
        if is_part and call.call not in seen:
            seen.add(call.call)
            source = call.scope.source
            part = slice(*source.span(function.value))  # type: ignore[attr-defined]
            yield replace(source, function, source.text[part])


def _of_unseen(project: Project) -> Iterator[Finding]:
    """Yield the models that something outside the project runs, next to those that are called."""
    is_single = project.models and not project.distribution.is_by_hand
    for node, scope, variable in unseen_models(project) if is_single else ():
        message = f"the gradients of {variable} are not averaged over the processes"
        refusal = f"an optimizer changes {variable}, and what runs it here cannot be followed"
        yield found(RULE, scope.source, node, message, refusal=refusal, kind="model-not-followed")


def _wrap_after(project: Project, model: Model, source: Source, statement: ast.stmt) -> Edit:
    """Return the edit that wraps a model after a statement, under the condition under which there is one."""
    names = named_before(project, model, source, statement)
    same = "".join(f"{name} = " for name, is_parallel in names.items() if not is_parallel)
    lines = [same + _wrapping(project, model, str(model.variable))]
    parallel = (name for name, is_parallel in names.items() if is_parallel)
    lines += [f"{name} = {model.variable} if rd.get_world_size() > 1 else {name}" for name in parallel]
    scope = project.analysis.scope_at(source, statement)
    condition = condition_at(project.analysis, model.variable, scope, statement)
    return insert_after(source, statement, under_condition(source, statement, condition, lines))


def _wrapping(project: Project, model: Model, name: str) -> str:
    methods = entry_points(project, model)
    option = f", methods={json.dumps(methods)}" if methods else ""
    function = "rd.model.distribute_models" if model.is_container else "rd.distribute_model"
    return f"{name} = {function}({name}{option})"


def _before_training(project: Project, model: Model, message: str) -> Finding:
    """Return the finding of a model that several functions set: where training begins, it holds what is trained."""
    places = places_before_training(project, model)
    source, node = model.calls[0].scope.source, model.calls[0].call
    if isinstance(places, str):
        return found(RULE, source, node, message, refusal=places, kind="model-of-several-functions")
    edits = [insert_before(file, first, [_wrapping(project, model, name)]) for file, first, name in places]
    return found(RULE, source, node, message, edits)


def _rebuilt(project: Project, model: Model, first: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the places after which another training begins, of a model that was made again after the first one."""
    seen = {first}
    training = {frame.scope.source.statement(frame.node) for path in project.paths for frame in path.frames}
    for path in project.paths:
        place = place_after(project, model, [path])
        if place is None or place[1] in seen or place[1] in training:
            continue
        given = [a.statement for a in assignments_to(project.analysis, model.variable) if a.value is not None]
        inside = set(walk(place[1]))
        if any(statement in inside and statement not in training for statement in given):
            seen.add(place[1])
            yield place[1]


def _made_again(project: Project, model: Model, first: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the last statement that makes the model again, in a loop of several trainings."""
    analysis, batches = project.analysis, project.nodes_in_batches
    loops = project.nodes_in_loops - batches
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
    made = [part for part in walk(value) if isinstance(part, ast.Call)]
    classes = (kind for part in made for kind in analysis.evaluate(part.func, scope))
    return any(isinstance(kind, LocalClass) and is_module(analysis, Instance(kind.scope)) for kind in classes)


def _is_made_elsewhere(project: Project, model: Model, place: ast.stmt) -> bool:
    """Return whether a model gets its name in the training loop, without being made there."""
    given = [a.statement for a in assignments_to(project.analysis, model.variable)]
    made = any(isinstance(part, ast.Call) for s in given if isinstance(s, ast.Assign) for part in walk(s.value))
    return place in project.nodes_in_loops and not made


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
