"""RF302 loss-averaged-per-rank: a mean over the elements that count, of which processes have different numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import argument_for
from retrofit.project.edits import Edit, surround
from retrofit.project.losses import MEAN, Term, loss_expressions, term_of
from retrofit.project.masks import is_selected
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
PACKING = "torch.nn.utils.rnn.pack_padded_sequence"
COUNTING = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}
ELEMENTWISE = {
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
}  # fmt: skip
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
    for path in project.paths:
        for expression, scope in loss_expressions(path):
            for node in ast.walk(expression):
                if node in seen:
                    continue
                seen.add(node)
                term = term_of(project.analysis, node, scope)
                if term is not None and (_counts(term) or _is_of_some(project, term)):
                    message = "the mean is over the elements that this process counts"
                    yield found(CODE, scope.source, node, message, HELP, _edits(term))
                elif _is_masked_mean(project, node, scope):
                    yield found(CODE, scope.source, node, "the sum is divided by this process's own count", HELP)


def _counts(term: Term) -> bool:
    """Return whether a loss of torch averages over what is not ignored, or by the weights of the classes."""
    given = [term.option(name) for name in ("ignore_index", "weight")]
    given = [option for option in given if not (isinstance(option, ast.Constant) and option.value is None)]
    return term.reduction == MEAN and term.name in COUNTING and any(option is not None for option in given)


def _is_of_some(project: Project, term: Term) -> bool:
    """Return whether the targets are those of sequences without their padding, or what a mask leaves of them."""
    target = argument_for(term.call, ["input", "target"], "target")
    if term.reduction != MEAN or term.name not in COUNTING | ELEMENTWISE:
        return False
    if target is not None and is_selected(target, term.scope):
        return True
    values = list(project.analysis.evaluate(target, term.scope))
    while values:
        value = values.pop()
        if isinstance(value, (Item, Member)):
            values.append(value.base)
        elif isinstance(value, Result) and value.maker == PACKING:
            return True
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
