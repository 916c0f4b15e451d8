"""RF507 state-not-restored: a training that is continued draws the samples of its first epochs once more."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for, given_parameters
from retrofit.analysis.edits import Edit, insert_before
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN, Loader
from retrofit.training.loops import Frame, LoopNode, Path
from retrofit.training.torch_api.files import LOADS_STATE
from retrofit.training.torch_api.output import COUNTING_BARS
from retrofit.training.torch_api.runtime import SET_EPOCH

RULE = CATALOG["RF507"]
INVALID = [
    """\
start_epoch = torch.load("last.pt", map_location=rd.devices.own_storage)["epoch"]
for epoch in range(start_epoch, 10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
        optimizer.step()
""",
    """\
epoch = torch.load("last.pt", map_location=rd.devices.own_storage)["epoch"]
while epoch < 10:
    for images, labels in loader:
        criterion(model(images), labels).backward()
        optimizer.step()
    epoch += 1
""",
]
VALID = [
    """\
start_epoch = torch.load("last.pt", map_location=rd.devices.own_storage)["epoch"]
for epoch in range(start_epoch, 10):
    rd.set_epoch(loader, epoch)
    for images, labels in loader:
        criterion(model(images), labels).backward()
        optimizer.step()
""",
    # from the first epoch
    """\
state = torch.load("last.pt", map_location=rd.devices.own_storage)
for epoch in range(1, 10):
    for images, labels in loader:
        criterion(model(images), labels).backward()
""",
    # a loop over steps
    """\
first = torch.load("last.pt", map_location=rd.devices.own_storage)["step"]
for step in range(first, 1000):
    images, labels = next(iter(loader))
    criterion(model(images), labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand or not project.calls_any(LOADS_STATE) or project.calls_any({SET_EPOCH}):
        return
    seen: set[ast.AST] = set()
    for path in project.paths:
        for number, frame in enumerate(path.frames):
            for loop in frame.loops:
                epoch = _continued(project.analysis, loop, frame.scope)
                if loop in seen or epoch is None:
                    continue
                seen.add(loop)
                edit = _at_loop(project, loop, frame, epoch) or _in_function(project, path, number, epoch)
                if edit is not None:
                    yield found(RULE, frame.scope.source, loop, "a continued training has the first order", [edit])


def _at_loop(project: Project, loop: LoopNode, frame: Frame, epoch: str) -> Edit | None:
    """Return an edit at the start of the epoch, if the loader has a name there, or after what makes it in the epoch."""
    lines = _lines(project, frame, epoch)
    last = max((_number_of(loop, binding.node) for binding in _made_by(project)), default=-1)
    if not lines or last + 1 >= len(loop.body):
        return None
    return insert_before(frame.scope.source, loop.body[last + 1], lines)


def _made_by(project: Project) -> Iterator[Binding]:
    """Yield what sets the variables of the training's loaders."""
    for loader in project.loaders:
        if TRAIN in loader.roles and loader.variable is not None and not loader.variable.is_attribute:
            yield from loader.variable.scope.bindings.get(loader.variable.name, [])


def _number_of(loop: LoopNode, node: ast.AST) -> int:
    """Return which statement of a loop's body a node is in, -1 for none."""
    return next((number for number, part in enumerate(loop.body) if node in walk(part)), -1)


def _in_function(project: Project, path: Path, number: int, epoch: str) -> Edit | None:
    """Return an edit in the function that the epoch's loop calls with the number of the epoch, before its loop."""
    call = path.frames[number].node
    inner = path.frames[number - 1] if number else None
    if (
        inner is None
        or not inner.loops
        or not isinstance(call, ast.Call)
        or not isinstance(inner.scope.node, FUNCTIONS)
    ):
        return None
    bound = given_parameters(inner.scope)
    for name in bound:
        given = argument_for(call, bound, name)
        if isinstance(given, ast.Name) and given.id == epoch:
            lines = _lines(project, inner, name)
            return insert_before(inner.scope.source, inner.loops[-1], lines) if lines else None
    return None


def _lines(project: Project, frame: Frame, epoch: str) -> list[str]:
    """Return the lines that set the epoch of the training's loaders, as far as they have names in a scope."""
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    names = [name for loader in loaders if (name := _name_in(project.analysis, loader, frame)) is not None]
    return [f"rd.set_epoch({name}, {epoch})" for name in dict.fromkeys(names)]


def _continued(analysis: Analysis, loop: ast.AST, scope: Scope) -> str | None:
    """Return the name that counts epochs from a number that is worked out: `for epoch in range(start, epochs)`."""
    if isinstance(loop, ast.For) and _continues(analysis, loop, scope):
        return ast.unparse(loop.target)
    return _counted_by_hand(loop, scope) if isinstance(loop, ast.While) else None


def _counted_by_hand(loop: ast.While, scope: Scope) -> str | None:
    """Return `epoch` of `epoch = start; while epoch < epochs: ...; epoch += 1`."""
    name = loop.test.left.id if isinstance(loop.test, ast.Compare) and isinstance(loop.test.left, ast.Name) else ""
    steps = [n for n in loop.body if isinstance(n, ast.AugAssign) and ast.unparse(n.target) == name]
    first = [b.value for b in scope.bindings.get(name, []) if b.value is not None and b.node not in walk(loop)]
    is_worked_out = any(not isinstance(value, ast.Constant) for value in first)
    return name if "epoch" in name and steps and is_worked_out else None


def _continues(analysis: Analysis, loop: ast.For, scope: Scope) -> bool:
    call = loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(call, ast.Call) or len(call.args) < 2:
        return False
    start = call.args[0]
    is_number = isinstance(start, ast.Constant) or isinstance(getattr(start, "operand", None), ast.Constant)
    return analysis.called(call, scope) <= {"range", *COUNTING_BARS} and not is_number and "epoch" in loop.target.id


def _name_in(analysis: Analysis, loader: Loader, frame: Frame) -> str | None:
    """Return how a loader is called in a scope, None where it has no name there."""
    if loader.variable is not None and _is_seen(analysis, loader.variable, frame.scope):
        return str(loader.variable)
    given = parameters(frame.scope.node) if isinstance(frame.scope.node, FUNCTIONS) else []
    for use in loader.uses:
        is_given = isinstance(use.expression, ast.Name) and use.expression.id in given
        if use.role == TRAIN and use.scope is frame.scope and is_given:
            return ast.unparse(use.expression)
    return None


def _is_seen(analysis: Analysis, variable: Variable, scope: Scope) -> bool:
    if variable.is_attribute:
        own = scope.enclosing_class()
        return own is not None and variable.scope in analysis.classes.mro(own)
    found = scope.find(variable.name)
    return found is not None and found[0] is variable.scope
