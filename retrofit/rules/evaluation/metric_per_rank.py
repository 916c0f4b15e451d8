"""RF401 metric-per-rank: what is shown, or decides, is measured on this rank's own samples only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import ADDS_ONE
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.shards import is_sharded
from retrofit.training.distributed.reductions import Reduction, reduce_value
from retrofit.training.evaluation.decisions import decides
from retrofit.training.evaluation.measurements import Measurement, is_collected, spread, users
from retrofit.training.files.guards import runs_on_some
from retrofit.training.loops import Path
from retrofit.training.losses.divisions import SIZE, Reader, without_guard
from retrofit.training.losses.loss_reads import reads_of_loss
from retrofit.training.losses.reductions.reduction import (
    MEAN_OF_LAST,
    MEAN_OF_RANKS,
    SUM_OF_RANKS,
    counts_outputs,
    reduction_for,
)
from retrofit.training.losses.reductions.samples import looks_like_size
from retrofit.training.losses.terms import is_of_all
from retrofit.training.steps.skipped_steps import skips
from retrofit.training.torch_api.runtime import SAME_BATCHES

RULE = CATALOG["RF401"]
READS = (ast.Attribute, ast.Call)
INVALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    total += loss.item()
""",
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    if loss.item() == 0:  # RF401
        continue
    loss.backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    total += rd.reduce_loss(loss).item()
""",
    # a distributed script shows the loss of one process on purpose
    """\
model = DDP(Net())
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    print(loss.item())
""",
]

KEEPS = ADDS_ONE | {"extend", "update"}
TOTAL = "rd.reduce_total"
COLLECT = "total, count = rd.sum_over_ranks(total, count), on every process, before it decides"


def find(project: Project) -> Iterator[Finding]:
    yield from _decisions(project)
    if not project.distribution.is_by_hand:  # that shows the loss of rank 0 and knows it
        yield from _shown(project)


def _decisions(project: Project) -> Iterator[Finding]:
    """Yield what is decided by the sums that each process has of its own share of an evaluation."""
    seen: set[ast.AST] = set()
    training = {loop for path in project.paths for loop, _ in path.loops}
    for evaluation in project.measurements:
        measured = evaluation.sums | evaluation.lists
        if evaluation.loop in training:
            continue  # which of the two a loop is at a time, and of which loader, depends on its caller
        if not measured or not is_sharded(project.ranks, evaluation.loader) or _is_whole(project, evaluation):
            continue
        known = list(users(project.analysis, evaluation.scope, measured))
        if _collects(project, evaluation) or any(
            is_collected(project.analysis, project.distribution, k) for k in known
        ):
            continue
        for k in known:
            for node in own_nodes(k.scope.node):
                if node not in seen and decides(project.analysis, project.paths, node, k):
                    seen.add(node)
                    message = "each process decides by its own share of the evaluation"
                    yield found(RULE, k.scope.source, node, message, help=COLLECT)


def _is_whole(project: Project, evaluation: Measurement) -> bool:
    """Return whether every process draws all batches, also of a loader that gives a training each its own."""
    parts = walk(evaluation.loop.iter) if isinstance(evaluation.loop, (ast.For, ast.AsyncFor)) else ()
    calls = (part for part in parts if isinstance(part, ast.Call))
    return any(project.analysis.called(call, evaluation.scope) & SAME_BATCHES for call in calls)


def _collects(project: Project, evaluation: Measurement) -> bool:
    """Return whether the loop itself adds up over the processes."""
    calls = (node for node in walk(evaluation.loop) if isinstance(node, ast.Call))
    return any(project.leads_to_collective(call, evaluation.scope) for call in calls)


def _shown(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    for path in project.paths:
        frame = path.frames[0]
        call = frame.node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if is_of_all(project.analysis, project.distribution, path):
            continue
        for node in (*reads_of_loss(project.analysis, call.func.value, frame), *_deciding(project, path)):
            source = frame.scope.source
            if node in seen or _is_share(project, node, frame.scope):
                continue
            if _is_added_up(project, source.statement(node), frame.scope):
                continue
            if project.distribution.joins and runs_on_some(project.analysis, frame.scope, node):
                continue  # shown by one process on purpose
            seen.add(node)
            function = reduction_for(project, node, frame.scope)
            is_after = _is_after_batches(project, path, node)
            if function == SUM_OF_RANKS and not is_after:
                if not _is_shown_alone(source, node):
                    continue  # with what it is divided by, or not at all: RF407
                function = TOTAL
            function = MEAN_OF_LAST if function == MEAN_OF_RANKS and is_after else function
            edits = [reduce_value(frame.scope, node, function), *_quotient_edits(project, node, frame.scope)]
            help = RULE.remedy.replace("rd.reduce_loss", function)
            yield found(RULE, source, node, "the logged loss is this rank's own", edits, help=help)


def _is_shown_alone(source: Source, loss: ast.AST) -> bool:
    """Return whether a statement shows a loss as it is, and does not compute with it, or keep it."""
    statement = source.statement(loss)
    is_computed = any(isinstance(outer, ast.BinOp) for outer in source.ancestors(loss) if isinstance(outer, ast.expr))
    return isinstance(statement, ast.Expr) and last_name(statement.value) not in KEEPS and not is_computed


def _is_after_batches(project: Project, path: Path, node: ast.AST) -> bool:
    """Return whether a loss is read where the loop over the batches, in the same function, has ended."""
    scope = path.frames[0].scope
    loops = [loop for loop, frame in path.loops if frame.scope is scope and loop in project.batch_values.loops]
    return bool(loops) and not any(outer in loops for outer in scope.source.ancestors(node))


def _is_share(project: Project, loss: ast.AST, scope: Scope) -> bool:
    """Return whether a loss is divided by the number of processes: its share of their mean."""
    source = scope.source
    return any(
        isinstance(outer, ast.BinOp)
        and isinstance(outer.op, ast.Div)
        and project.ranks.is_world_size(outer.right, scope)
        for outer in source.ancestors(loss)
    )


def _is_added_up(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether what a loss is added to is summed over all processes later."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    return is_collected(project.analysis, project.distribution, spread(scope, {statement.target.id}))


def _deciding(project: Project, path: Path) -> Iterator[ast.Name]:
    """Yield the loss in `if loss == 0: continue`: a step that one process leaves out, the others wait for."""
    for skip in skips(project.analysis, path):
        yield from skip.losses


def _is_without_gradients(node: ast.AST, scope: Scope) -> bool:
    """Return whether a node is in a `with torch.no_grad()` of its function, where counts are of one rank."""
    withs = (outer for outer in scope.source.ancestors(node) if isinstance(outer, (ast.With, ast.AsyncWith)))
    contexts = (last_name(item.context_expr) for outer in withs for item in outer.items)
    return any(name in ("no_grad", "inference_mode") for name in contexts)


def _quotient_edits(project: Project, loss: ast.expr, scope: Scope) -> list[Edit | Reduction]:
    """Return the edits of `loss.item() / len(images)`: the sum over all ranks is divided by the samples of all."""
    source, node = scope.source, loss
    outer = source.parents.get(node)
    while isinstance(outer, READS) or (isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult)):
        node, outer = outer, source.parents.get(outer)
    if not isinstance(outer, ast.BinOp) or not isinstance(outer.op, ast.Div) or outer.left is not node:
        return []
    if _is_without_gradients(node, scope) or counts_outputs(project, outer.right, scope):
        return []
    reader = Reader(project.analysis, project.batch_values, project.distribution)
    is_size = reader.kind_of(outer.right, scope) == SIZE
    if (outer.right, scope) in project.batch_sizes:
        return [*surround(source, outer.right, "rd.loss.global_batch(", ")")]
    if not is_size and not looks_like_size(project.batch_values, outer.right, scope):
        return []
    return [reduce_value(scope, without_guard(outer.right), "rd.loss.batch_count")]
