"""RF406 figure-of-one-rank: something that depends on one rank's samples is shown, kept or decides, as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.interpreter.branches import CHECKS
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.carried_state import writes_of_pools
from retrofit.training.figures.figures import figures_of
from retrofit.training.figures.shown import Shown
from retrofit.training.figures.sinks import DECIDES, PASSED, WEIGHS
from retrofit.training.steps.drawn_choices import drawn_choices
from retrofit.training.steps.drawn_partners import drawn_partners
from retrofit.training.steps.draws_per_batch import draws_per_batch
from retrofit.training.steps.shared_branches import all_come_to, leaves_or_trains

RULE = CATALOG["RF406"]
DECISION = "let all ranks decide by one figure, rd.reduce_loss(mean) or rd.reduce_total(count)"
CHOICE = "let all ranks choose by one number, rd.collectives.broadcast_object(random.random())"
ONE_DRAW = "the training is as with another seed; one draw for all ranks: rd.data.draw_together(torch.rand, 1)"
PARTNER = "the training is as with another seed; for that of one process gather the rows, rd.loss.batch_rows(images)"
POOL = "the training is as with another seed; a pool of N samples in each process holds N times as many in all"
INVALID = [
    """\
for images, labels in loader:
    order = torch.randperm(len(images))  # RF406
    mixed = 0.7 * images + 0.3 * images[order]
    loss = 0.7 * criterion(model(mixed), labels) + 0.3 * criterion(model(mixed), labels[order])
    loss.backward()
""",
    """\
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    print("largest", outputs.max().item())
""",
    """\
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    if outputs.max() > 9:  # RF406
        break
""",
    """\
writer = rd.output.on_main_process(SummaryWriter, "log")
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    writer.add_histogram("outputs", outputs)  # RF406
""",
    """\
largest = []
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    largest.append(outputs.max().item())
print(max(largest))  # RF406
""",
]
VALID = [
    """\
for images, labels in loader:
    outputs = model(images)
    criterion(outputs, labels).backward()
    print("largest", rd.reduce_loss(outputs.max()).item())
""",
    # the same on all processes: weights, rates, the shape of a sample
    """\
for step, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    print(step, images.shape[1], model.weight.norm().item(), optimizer.param_groups[0]["lr"])
""",
    # every process evaluates all samples
    """\
with torch.no_grad():
    for images, labels in test_loader:
        print(model(images).max().item())
""",
]
LONGEST = 60


def find(project: Project) -> Iterator[Finding]:
    figures = figures_of(project)
    reducible = set(figures.reducible)
    for shown in figures.shown:
        if shown.is_unknown or not shown.roots <= reducible:
            source = shown.scope.source
            names = ", ".join(dict.fromkeys(_short(value) for value in shown.values))
            help = DECISION if shown.kind == DECIDES else ""
            yield found(RULE, source, shown.node, f"rank 0's share: {names}, {_verb(shown)}", help=help)
    yield from _drawn(project, {shown.node for shown in figures.shown})
    if not figures.is_complete:
        message = "rank 0's share: the program is too large to be followed to its end, so more figures may be of it"
        yield found(RULE, project.entry, project.entry.tree.body[0], message)


def _drawn(project: Project, listed: set[ast.AST]) -> Iterator[Finding]:
    """Yield the random choices that one process makes once for a batch, and each rank for its own part of it."""
    lines: set[tuple[Scope, int]] = set()
    if project.distribution.is_by_hand:
        return
    for call, scope in drawn_partners(project):
        lines.add((scope, call.lineno))
        message = f"each rank draws its own: {_short(call)}, by which samples meet others of the same rank alone"
        yield found(RULE, scope.source, call, message, help=PARTNER)
    for chosen, scope in drawn_choices(project):
        statement = scope.source.statement(chosen)
        if (scope, chosen.lineno) not in lines and listed.isdisjoint({statement, scope.source.parents[chosen]}):
            lines.add((scope, chosen.lineno))
            message = f"each rank draws its own: {_short(chosen)}, by which it chooses for its part of the batch"
            yield found(RULE, scope.source, chosen, message, help=CHOICE)
    for call, scope in draws_per_batch(project):
        if (scope, call.lineno) not in lines:
            lines.add((scope, call.lineno))
            message = f"each rank draws its own: {_short(call)}, which one process draws once for the whole batch"
            yield found(RULE, scope.source, call, message, help=ONE_DRAW)
    for name, write in {write.name: write for write in reversed(writes_of_pools(project))}.items():
        message = f"each rank keeps its own: {name}, from which later batches take samples of the same rank at random"
        yield found(RULE, write.scope.source, write.node, message, help=POOL)


def decided_by_main(project: Project) -> Iterator[Finding]:
    """Yield the decisions of one rank's share after which ranks would wait for each other: rank 0's is for all.

    Also the checks of what a rank has counted, which would end every one of several processes.
    """
    for shown in figures_of(project).shown:
        node, scope = shown.node, shown.scope
        if shown.kind == CHECKS and isinstance(node, (ast.Assert, ast.If)):
            message = f"rank 0's share: {_short(node.test)}, which is checked in one process only"
            unless = "> 1 or" if isinstance(node, ast.Assert) else "== 1 and"
            edits = surround(scope.source, node.test, f"rd.get_world_size() {unless} (", ")")
            yield found(RULE, scope.source, node, message, edits)
        if shown.kind != DECIDES or not isinstance(node, (ast.If, ast.While)) or node.test not in shown.values:
            continue
        if leaves_or_trains(project, node, scope) and all_come_to(project, node, scope):
            message = f"rank 0's share: {_short(node.test)}, by which rank 0 decides for all"
            edits = surround(scope.source, node.test, "rd.collectives.broadcast_object(bool(", "))")
            yield found(RULE, scope.source, node, message, edits)


def _verb(shown: Shown) -> str:
    if shown.kind == DECIDES:
        return "by which each rank decides on its own"
    if shown.kind == WEIGHS:
        return "by which each rank weighs a term of its loss"
    if shown.kind == CHECKS:
        return "which each rank checks of its own samples"
    return "passed on" if shown.kind == PASSED else f"is {shown.kind}"


def _short(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
