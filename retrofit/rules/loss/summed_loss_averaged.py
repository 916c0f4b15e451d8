"""RF307 summed-loss-averaged: a loss summed over the batch, whose gradients are averaged over the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.loops import Path
from retrofit.training.losses.criteria.named_at_run_time import losses_named_at_run_time
from retrofit.training.losses.flow import loss_parts
from retrofit.training.losses.reductions.kinds import SUM, UNKNOWN, Kind
from retrofit.training.losses.reductions.reduction import backward_kind, is_sum, loss_kind, sum_terms
from retrofit.training.losses.terms import is_of_all, terms_at
from retrofit.training.torch_api.runtime import SUM_LOSS

RULE = CATALOG["RF307"]
A_TERM = "a term of the loss is a sum over the batch"
HELP_TERM = "loss = rd.loss.sum_loss(summed_term) + other_term"
HELP_ENTRIES = (
    "nothing where the entries are outputs of layers, scales or heads, with all samples in each; where they are "
    "samples: rd.loss.sum_loss(loss).backward(), and the rate stays"
)
HELP_OPEN = "where it is a sum: rd.loss.sum_loss(loss).backward(), and the rate stays"
HELP_SUM = "where the divisor is not the number of samples: rd.loss.sum_loss(loss).backward()"
HELP_NAMED = (
    "nothing where it is a mean over the samples; for a sum over them rd.loss.sum_loss(loss).backward(); for one that "
    "compares samples a table of the losses that there can be"
)
INVALID = [
    """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
""",
    """\
for images, labels in loader:
    loss = (model(images) - labels).abs().mean(1).sum()
    loss.backward()  # RF307
""",
    """\
for images, labels in loader:
    loss = F.mse_loss(model(images), labels) * len(images)
    loss.backward()  # RF307
""",
    """\
for images, labels in loader:
    outputs = model(images)
    loss = F.mse_loss(outputs, labels, reduction="sum") + F.l1_loss(outputs, labels)  # RF307
    loss.backward()
""",
    """\
for images, labels in loader:
    loss = getattr(metrics, name)(model(images), labels)  # RF307
    loss.backward()
""",
]
VALID = [
    """\
criterion = nn.MSELoss(reduction="sum")
for images, labels in loader:
    loss = criterion(model(images), labels)
    rd.loss.sum_loss(loss).backward()
""",
    # a sum divided by the samples is a mean
    """\
for images, labels in loader:
    loss = F.mse_loss(model(images), labels, reduction="sum") / len(images)
    loss.backward()
""",
    # a sum over the features of each sample
    """\
for images, labels in loader:
    loss = (model(images) - labels).pow(2).sum(1).mean()
    loss.backward()
""",
    # a sum over weights, which every process has
    """\
for images, labels in loader:
    loss = criterion(model(images), labels) + 0.1 * model.weight.square().sum()
    loss.backward()
""",
    # multiplied by the number of processes, by which DDP divides
    """\
for images, labels in loader:
    loss = F.mse_loss(model(images), labels, reduction="sum") * rd.get_world_size()
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call in seen or is_of_all(project.analysis, project.distribution, path):
            continue
        seen.add(call)
        if not _has_factor(project, call.func.value, scope):
            for finding, node in _of_loss(project, call, scope):
                if node is call or node not in seen:
                    seen.add(node)
                    yield finding
            yield from _of_open_terms(project, path, seen)
    for loss, where in losses_named_at_run_time(project) if not project.distribution.is_by_hand else ():
        message = f"{ast.unparse(loss.func)} gets its name in the run, so it cannot be told whether the loss is a mean"
        yield found(RULE, where.source, loss, message, help=HELP_NAMED)


def _of_loss(project: Project, call: ast.Call, scope: Scope) -> Iterator[tuple[Finding, ast.AST]]:
    """Yield what to do about a loss that is a sum, or has terms that are, each with the node that it is about."""
    assert isinstance(call.func, ast.Attribute)
    source, loss = scope.source, call.func.value
    kind = backward_kind(project, call, scope)
    if is_sum(kind):
        edits = surround(source, loss, "rd.loss.sum_loss(", ")")
        yield found(RULE, source, call, "the loss is a sum over the batch", edits), call
    elif SUM in kind.parts:
        terms = sum_terms(project, loss, scope)
        for term, where in terms or ():
            edits = surround(where.source, term, "rd.loss.sum_loss(", ")")
            yield found(RULE, where.source, term, A_TERM, edits, help=HELP_TERM), term
        if not terms:
            yield found(RULE, source, call, A_TERM, help=HELP_TERM), call
    elif kind.parts == {UNKNOWN} and any(is_sum(loss_kind(project, *leaf)) for leaf in kind.leaves):
        message = "the loss is a sum over the batch, divided by what is not known"
        yield found(RULE, source, call, message, help=HELP_SUM), call
    for iterable, where in sorted(kind.unclear, key=lambda leaf: leaf[0].lineno):
        text = ast.unparse(iterable)
        message = f"the loss is added up over {text}, of which it is not known whether its entries are samples"
        yield found(RULE, where.source, iterable, message, help=HELP_ENTRIES), iterable


def _of_open_terms(project: Project, path: Path, seen: set[ast.AST]) -> Iterator[Finding]:
    """Yield the terms of a loss of which an option chooses whether they are sums: reduction=args.reduction."""
    for part, scope in loss_parts(project.analysis, path) if UNKNOWN in _kind_of(project, path).parts else ():
        if part not in seen and any(not term.reduction for term in terms_at(project.analysis, part, scope)):
            seen.add(part)
            yield found(RULE, scope.source, part, "an option chooses whether a term is a sum", help=HELP_OPEN)


def _kind_of(project: Project, path: Path) -> Kind:
    call = path.frames[0].node
    assert isinstance(call, ast.Call)
    return backward_kind(project, call, path.frames[0].scope)


def _has_factor(project: Project, loss: ast.expr, scope: Scope) -> bool:
    """Return whether the number of processes is in a loss already."""
    parts = [part for part in walk(loss) if isinstance(part, ast.expr)]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    made = [b.value for name in names for b in scope.bindings.get(name, []) if b.value is not None]
    parts += [part for value in made for part in walk(value) if isinstance(part, ast.expr)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    return any(SUM_LOSS in project.analysis.called(call, scope) for call in calls) or any(
        project.ranks.is_world_size(part, scope) for part in parts
    )
