"""RF302 loss-averaged-per-rank: a mean over the elements that count, of which processes have different numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import argument_for
from retrofit.project.edits import Edit, surround
from retrofit.project.loss_flow import loss_parts
from retrofit.project.losses import COUNTING, MEAN, Term, loss_expressions, terms_at
from retrofit.project.measurements import is_collected, name_in, spread
from retrofit.project.scopes import Scope
from retrofit.project.values import Item, Member, Result

from .finding import Finding, found

CODE = "RF302"
NAME = "loss-averaged-per-rank"
WHY = (
    "Each process divides by its own number of valid elements, and DDP averages these means: an element weighs more on "
    "a process that has few of them."
)
HELP = (
    "rd.distribute_criterion(nn.CrossEntropyLoss(...)); for a mean of your own, divide the sum by the number of all "
    "processes: count, = rd.reduce_sum([valid]); loss = rd.global_mean(loss_sum, count)"
)
HELP_CURVED = (
    "processes average the values of a function of their means, which is not that of the mean over the whole batch: "
    "apply it to each sample, or bring the mean of all processes together with gradients (torch.distributed.nn)"
)
PACKING = "torch.nn.utils.rnn.pack_padded_sequence"
BAD = """\
criterion = nn.CrossEntropyLoss(ignore_index=255)
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
"""
GOOD = """\
criterion = rd.distribute_criterion(nn.CrossEntropyLoss(ignore_index=255))
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
"""


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    parts = [loss_parts(project.analysis, path) for path in project.paths]
    curved = {place for items in parts for place, is_linear in items.items() if not is_linear}
    shared = {term.maker for node, scope in curved for term in terms_at(project.analysis, node, scope)}
    curved_nodes = {node for node, _ in curved}
    for node, scope in (*_around_backward(project), *(place for items in parts for place in items)):
        if node in seen:
            continue
        seen.add(node)
        terms = terms_at(project.analysis, node, scope)
        if node in curved_nodes and any(term.reduction == MEAN for term in terms):
            yield found(
                CODE, scope.source, node, "the loss is no linear function of this process's own mean", HELP_CURVED
            )
        elif counting := [term for term in terms if _counts(project, term)]:
            edits = [edit for term in counting if term.maker not in shared for edit in _edits(term)]
            yield found(CODE, scope.source, node, "the mean is over the elements that this process counts", HELP, edits)
        if _is_masked_mean(project, node, scope):
            yield found(CODE, scope.source, node, "the sum is divided by this process's own count", HELP)


def _around_backward(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield all that stands in the expressions which training losses are computed by, beside the backward call."""
    for path in project.paths:
        for expression, scope in loss_expressions(path):
            yield from ((node, scope) for node in ast.walk(expression))


def _counts(project: Project, term: Term) -> bool:
    is_known = term.reduction == MEAN or not project.distribution.is_by_hand  # the runtime looks at it
    return (term.counts and is_known) or _is_packed(project, term)


def _is_packed(project: Project, term: Term) -> bool:
    """Return whether the targets are those of sequences without their padding, whose lengths differ by sample."""
    target = argument_for(term.call, ["input", "target"], "target")
    values = list(project.analysis.evaluate(target, term.scope))
    while values:
        value = values.pop()
        if isinstance(value, (Item, Member)):
            values.append(value.base)
        elif isinstance(value, Result) and value.maker == PACKING:
            return term.reduction == MEAN and term.name in COUNTING
    return False


def _edits(term: Term) -> list[Edit]:
    """Return edits at the place where the criterion is made, or at the function that is called."""
    node = term.maker.func if term.maker is term.call else term.maker
    return surround(term.maker_scope.source, node, "rd.distribute_criterion(", ")")


def _is_masked_mean(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is (losses * mask).sum() / mask.sum(), with a count that the processes do not add up."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    if not any(_is_sum(part) for part in ast.walk(node.left)):
        return False
    divisor = _without_guard(node.right)
    if not isinstance(divisor, ast.Name):
        return _is_sum(divisor)
    made = [binding.value for binding in scope.bindings.get(divisor.id, [])]
    if not made or not all(value is not None and _is_sum(_without_guard(value)) for value in made):
        return False
    return not is_collected(project.analysis, project.distribution, spread(scope, {name_in(divisor)}))


def _without_guard(node: ast.expr) -> ast.expr:
    """Return `count` of count.clamp(min=1), count + eps and max(count, 1), which keep it from being 0."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        is_small = isinstance(node.right, (ast.Constant, ast.Name, ast.Attribute))
        return node.left if is_small else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("clamp", "clamp_min"):
        return node.func.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max" and node.args:
        return node.args[0]
    return node


def _is_sum(node: ast.AST) -> bool:
    """Return whether this is x.sum() over everything."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sum"
    return is_method and not node.args and not node.keywords  # type: ignore[attr-defined]
