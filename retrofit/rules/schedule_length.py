"""RF305 schedule-length: a schedule counts other steps than the optimizer makes on several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import argument_for
from retrofit.project.distributed.ranks import WORLD_SIZE
from retrofit.project.distributed.shards import given_to, is_same, makers_of
from retrofit.project.loaders import TRAIN
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope
from retrofit.project.training import LOOPS
from retrofit.project.values import Member, Result, Values

from .finding import Finding, found

CODE = "RF305"
NAME = "schedule-length"
WHY = (
    "Of N processes each draws 1/N of the batches: a schedule that counts those of the whole data set is N times too "
    "long, and one that steps once per process ends too early."
)
HELP = "count the batches of the sharded loader, len(loader) * epochs, and step once for each optimizer step"
BAD = """\
total_steps = 10 * len(dataset) // 8
loader = rd.distribute_loader(DataLoader(dataset, 8, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
"""
GOOD = """\
loader = rd.distribute_loader(DataLoader(dataset, 8, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10 * len(loader))
"""
SCHEDULERS = "torch.optim.lr_scheduler."
LENGTHS = {"total_steps", "steps_per_epoch", "T_max", "T_0", "total_iters", "step_size_up", "num_training_steps"}
DIVISION = (ast.Div, ast.FloorDiv)
SECOND = {"CosineAnnealingLR": "T_max", "CosineAnnealingWarmRestarts": "T_0"}  # arguments behind the optimizer


def find(project: Project) -> Iterator[Finding]:
    drawn = list(_drawn(project))
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call):
            continue
        for length in _lengths(project, node, scope):
            if _counts_all(project, length, scope, drawn):
                message = "the schedule counts the batches of the whole data set, of which a process draws its share"
                yield found(CODE, scope.source, node, message, HELP)
                break
        if _steps_per_process(project, node, scope):
            yield found(CODE, scope.source, node, "the schedule steps once per process", HELP)


def _lengths(project: Project, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield the arguments that say how many steps a schedule has."""
    names = project.analysis.called(call, scope)
    schedules = [n for n in names if n.startswith(SCHEDULERS) or (n.startswith("transformers.") and "schedule" in n)]
    if not schedules:
        return
    yield from (keyword.value for keyword in call.keywords if keyword.arg in LENGTHS)
    if any(name in (f"{SCHEDULERS}LambdaLR", f"{SCHEDULERS}MultiplicativeLR") for name in schedules):
        factor = argument_for(call, ["optimizer", "lr_lambda"], "lr_lambda")
        if isinstance(factor, ast.Lambda):
            yield factor
    second = SECOND.get(schedules[0].rpartition(".")[2])
    given = argument_for(call, ["optimizer", second], second) if second else None
    if given is not None and given in call.args:
        yield given


def _drawn(project: Project) -> Iterator[tuple[Values, tuple[ast.expr, Scope]]]:
    """Yield for each training loader the values of its data set, and its batch size with the scope it stands in."""
    for loader in project.loaders:
        if TRAIN in loader.roles:
            for maker, scope in makers_of(project.analysis, loader):
                dataset, size = given_to(maker, "dataset"), given_to(maker, "batch_size")
                if size is not None and not _is_changed(project, size, scope):
                    yield project.analysis.evaluate(dataset, scope), (size, scope)


def _is_changed(project: Project, size: ast.expr, scope: Scope) -> bool:
    """Return whether a batch size is divided in place, so that it cannot be told what is counted with it."""
    if isinstance(size, ast.Attribute):
        given = project.ranks.set_attributes.get(size.attr, [])
        return any(WORLD_SIZE in project.ranks.sources_of(value, where) for value, where in given)
    _, bindings = (scope.find(size.id) if isinstance(size, ast.Name) else None) or (scope, [])
    return any(isinstance(binding.node, ast.AugAssign) for binding in bindings)


def _counts_all(
    project: Project, length: ast.expr, scope: Scope, drawn: list[tuple[Values, tuple[ast.expr, Scope]]]
) -> bool:
    """Return whether a number of steps is computed from len(dataset) / batch_size, without the number of processes."""
    analysis = project.analysis
    behind = project.ranks.behind(length, scope)
    nodes = [(node, where) for expression, where in behind for node in ast.walk(expression)]
    measured = [place for place in nodes if _is_call_of(project, place, "len")]
    divisors = [(n.right, where) for n, where in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, DIVISION)]
    for dataset, size in drawn:
        counts = any(_is_data(analysis.evaluate(n.args[0], where), dataset) for n, where in measured)  # type: ignore[attr-defined]
        divides = any(is_same(analysis, divisor, size) for divisor in divisors)
        if counts and divides and not any(_is_of_processes(project, *place, size) for place in nodes):
            return True
    return False


def _is_of_processes(project: Project, node: ast.AST, scope: Scope, size: tuple[ast.expr, Scope]) -> bool:
    """Return whether this is a factor that comes from the number of processes, and not with a batch or a count."""
    outer = scope.source.parents.get(node)
    if not isinstance(outer, (ast.BinOp, ast.AugAssign)) or not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return False
    if WORLD_SIZE not in project.ranks.sources_of(node, scope) or is_same(project.analysis, (node, scope), size):
        return False
    behind = ((part, where) for inner, where in project.ranks.behind(node, scope) for part in ast.walk(inner))
    return not any(_is_call_of(project, place, "len") for place in behind)


def _is_data(values: Values, dataset: Values) -> bool:
    """Return whether this is the data set of a training loader, also by the name `loader.dataset`."""
    return bool(values & dataset) or any(
        isinstance(value, Member) and value.name == "dataset" and isinstance(value.base, Result) for value in values
    )


def _is_call_of(project: Project, place: tuple[ast.AST, Scope], name: str) -> bool:
    node, scope = place
    return isinstance(node, ast.Call) and len(node.args) == 1 and name in project.analysis.called(node, scope)


def _steps_per_process(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is scheduler.step() in `for _ in range(world_size):`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    values = project.analysis.evaluate(call.func.value, scope)
    if not any(isinstance(value, Result) and value.maker.startswith(SCHEDULERS) for value in values):
        return False
    loop = next((outer for outer in scope.source.ancestors(call) if isinstance(outer, LOOPS)), None)
    if not isinstance(loop, ast.For) or not _is_call_of(project, (loop.iter, scope), "range"):
        return False
    assert isinstance(loop.iter, ast.Call)
    return project.ranks.is_world_size(loop.iter.args[0], scope)
