"""RF402 collective-on-some-ranks: what every process must take part in, under a test by which processes part."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_branches import rank_branches_of
from retrofit.training.distributed.ranks.rank_guards import MAIN, OTHERS, UNCLEAR, is_for_main, side_of

from .shared_calls import FORWARD, SharedCalls

RULE = CATALOG["RF402"]
INVALID = [
    """\
correct = torch.tensor(float(total))
if dist.get_rank() == 0:
    dist.all_reduce(correct)
    print(correct)
""",
    """\
value = torch.ones(1)
rd.is_main_process() and rd.reduce_loss(value)  # RF402
rd.get_rank() or rd.barrier()  # RF402
shown = [rd.reduce_loss(value) for _ in range(3) if rd.is_main_process()]  # RF402
while rd.is_main_process():
    rd.evaluation.gather_batches([])  # RF402
if rd.get_rank() % 2:
    rd.collectives.on_any_rank(True)  # RF402
for epoch in range(2):
    if rd.get_rank() > 0:
        continue
    rd.sum_over_ranks(1)  # RF402
""",
    """\
def show(value):
    rd.print_main(rd.reduce_loss(value))


@rank_zero_only
def show_alone(value):
    rd.print_main(rd.reduce_loss(value))  # RF402


rd.output.on_main_process(show, torch.ones(1))  # RF402
if rd.get_rank() == 0:
    show(torch.ones(1))  # RF402
show_alone(torch.ones(1))
""",
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    shown = rd.reduce_loss(loss) if images.max() > 0 else 0  # RF402
    images.max() > 0 and rd.collectives.on_any_rank(True)  # RF402
    while images.max() > 0:
        rd.barrier()  # RF402
    if loss.item() > 1:
        continue
    dist.all_reduce(loss)  # RF402
""",
]
VALID = [
    """\
correct = torch.tensor(float(total))
dist.all_reduce(correct)
if dist.get_rank() == 0:
    print(correct)
""",
    # each process calls one of the two
    """\
if not rd.is_main_process():
    rd.barrier()
torch.load("samples.pt")
if rd.is_main_process():
    rd.barrier()
""",
    # these tests give the same answer on all processes; an error ends the job
    """\
for epoch in range(2):
    for images, labels in loader:
        loss = criterion(model(images), labels)
        if torch.isnan(loss):
            raise ValueError
        loss.backward()
        tops = [images.max()] * dist.get_world_size()
        dist.all_gather(tops, images.max())
        if images.dim() == 2 and rd.reduce_loss(loss).item() > max(tops):
            rd.barrier()
        if epoch > 1 and rd.collectives.on_any_rank(bool(images.max() > 0)):
            rd.barrier()
        if rd.collectives.broadcast_object(torch.rand(1).item()) > 0.5:
            rd.barrier()
""",
]
DECIDE = (
    "let all processes decide by one value, rd.collectives.on_any_rank(test) or rd.reduce_loss(mean), or move it out"
)


def find(project: Project) -> Iterator[Finding]:
    shared = SharedCalls(project)
    parts: dict[tuple[Scope, str], dict[str, list[ast.Call]]] = defaultdict(lambda: defaultdict(list))
    for node, scope in reached_calls(project.analysis) if shared.exist else ():
        for name in shared.handed_to_main(node, scope):
            parts[scope, name][MAIN].append(node)
        names = shared.names(node, scope)
        side = (side_of(project.analysis, scope, node) or (MAIN if is_for_main(scope) else "")) if names else ""
        for name in names if side else ():
            parts[scope, name][side].append(node)
    seen: set[ast.Call] = set()
    for call, scope, name in _by_samples(project, shared):
        seen.add(call)
        message = f"{name} is run by the processes whose own samples let them come to it"
        yield found(RULE, scope.source, call, message, help=DECIDE)
    for (scope, name), sides in parts.items():
        if len(sides[MAIN]) == len(sides[OTHERS]) and len(sides[UNCLEAR]) % 2 == 0:
            continue  # `if rank != 0: barrier()` before the work, `if rank == 0: barrier()` after it
        for call in (*sides[MAIN], *sides[OTHERS], *sides[UNCLEAR]):
            if call not in seen:
                seen.add(call)
                yield found(RULE, scope.source, call, f"{name} is run by some of the processes only")


def _by_samples(project: Project, shared: SharedCalls) -> Iterator[tuple[ast.Call, Scope, str]]:
    """Yield the collectives that a process leaves out by what is in its own batch, where no other branch has them."""
    if not shared.collectives or not project.paths:
        return
    rank_branches = rank_branches_of(project)
    branches: dict[tuple[ast.AST, str], list[tuple[ast.Call, Scope, bool]]] = defaultdict(list)
    for node, scope in reached_calls(project.analysis):
        tests = rank_branches.by_samples(scope, node)
        for name in shared.names(node, scope) - {FORWARD} if tests else ():
            holder = scope.source.parents[tests[0]]
            is_else = isinstance(holder, ast.If) and is_in(holder.orelse, node, scope)
            branches[holder, name].append((node, scope, is_else))  # type: ignore[arg-type]
    for (_, name), calls in branches.items():
        num_else = sum(is_else for _, _, is_else in calls)
        if 2 * num_else != len(calls):
            yield from ((call, scope, name) for call, scope, _ in calls)


def is_in(block: list[ast.stmt], node: ast.AST, scope: Scope) -> bool:
    return any(outer in block for outer in (node, *scope.source.ancestors(node)))
