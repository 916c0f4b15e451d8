"""RF305 schedule-length: a schedule counts other steps than the optimizer makes on several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.loops import LOOPS
from retrofit.training.optimizer.schedules import (
    SETTING,
    Place,
    is_call_of,
    lengths,
    single_process_sizes,
    sizes_of_steps,
)
from retrofit.training.torch_api.optimizers import SCHEDULES

RULE = CATALOG["RF305"]
INVALID = [
    """\
total_steps = 10 * len(dataset) // 8
loader = rd.distribute_loader(DataLoader(dataset, 8, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
""",
    """\
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=len(dataset) // 8)
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step * batch_size / len(dataset))
warm = len(dataset) / float(batch_size * 2)
warm_up = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / warm))  # RF305
""",
    """\
model = DDP(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 100)
for images, labels in loader:
    criterion(model(images), labels).backward()
    for _ in range(dist.get_world_size()):
        scheduler.step()  # RF305
""",
]
VALID = [
    """\
loader = rd.distribute_loader(DataLoader(dataset, 8, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10 * len(loader))
""",
    # batches of the loader, epochs, and numbers of steps
    """\
epochs = 9
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=epochs // 3)
scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95 ** (step / 4))
""",
    # divided by the number of processes too
    """\
batch_size = 8
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
model = DDP(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1)
total_steps = len(dataset) // (batch_size * dist.get_world_size())
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
""",
    # no schedule
    """\
num_batches = len(dataset) // 8
print(num_batches)
""",
]


def find(project: Project) -> Iterator[Finding]:
    sizes = sizes_of_steps(project)
    seen: set[ast.AST] = set()
    for node, scope in reached_nodes(project.analysis).of(*SETTING):
        made_from = lengths(project, node, scope)
        counted = (place for of in made_from for place in single_process_sizes(project, *of, sizes))
        divisors = [place for place in dict.fromkeys(counted) if place[0] not in seen]
        if divisors:
            seen |= {divisor for divisor, _ in divisors}
            edits = [] if project.distribution.is_by_hand else _edits(divisors)
            message = "the schedule counts the batches of the whole data set, of which a process draws its share"
            yield found(RULE, scope.source, node, message, edits)
        if isinstance(node, ast.Call) and _steps_per_process(project, node, scope):
            yield found(RULE, scope.source, node, "the schedule steps once per process")


def _edits(divisors: list[Place]) -> list[Edit]:
    return [edit for node, scope in divisors for edit in surround(scope.source, node, "rd.data.samples_per_step(", ")")]


def _steps_per_process(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is scheduler.step() in `for _ in range(world_size):`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    values = project.analysis.evaluate(call.func.value, scope)
    if not any(isinstance(value, Result) and value.builder.startswith(SCHEDULES) for value in values):
        return False
    loop = next((outer for outer in scope.source.ancestors(call) if isinstance(outer, LOOPS)), None)
    if not isinstance(loop, ast.For) or not is_call_of(project, (loop.iter, scope), "range"):
        return False
    assert isinstance(loop.iter, ast.Call)
    return project.ranks.is_world_size(loop.iter.args[0], scope)
