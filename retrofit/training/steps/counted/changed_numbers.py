"""Numbers that every batch of a training changes by themselves: `weight *= 0.99`, `noise = max(noise * 0.99, 0.1)`.

N processes make 1/N of the batches in an epoch, so such a number changes less in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.modules import PARAMETERS
from retrofit.training.torch_api.tensors import OPERATORS

from ...model.indirect.library_calls import losses_computed_from
from ...optimizer.loop_ends import has_loader_length
from ...optimizer.rates import is_rate_of_group, rates_set
from ..drawn_choices import drawn_choices

if TYPE_CHECKING:
    from ... import Project

VARIABLES = (ast.Name, ast.Attribute, ast.Subscript)
Change = tuple[ast.stmt, ast.expr, ast.expr]  # the statement, the variable, and what it is changed by


def changes_of_losses(project: Project) -> Iterator[tuple[ast.stmt, Scope]]:
    """Yield the statements by which a batch changes a number that a loss is computed from, or that decides for it."""
    if not _changes(project):
        return
    computed = losses_computed_from(project.analysis, project.paths)
    texts = {_name(node) for node in computed if isinstance(node, (ast.Attribute, ast.Subscript))}
    names = {
        (node.id, source)
        for source in project.sources
        for node in computed & source.parents.keys()
        if isinstance(node, ast.Name)
    }
    deciding = {node for test, scope in drawn_choices(project) for node, _ in project.ranks.origins(test, scope)}
    for (statement, target, value), scope in _changes(project):
        parts = {statement, value, target}
        is_read = not parts.isdisjoint(computed) or not parts.isdisjoint(deciding)
        is_read |= not isinstance(target, ast.Name) and _name(target) in texts
        is_in_place = isinstance(statement, ast.Expr) and isinstance(target, ast.Name)  # w.mul_(0.9)
        if is_read or (is_in_place and (_name(target), scope.source) in names):
            yield statement, scope


def changes_of_rates(project: Project) -> Iterator[tuple[ast.stmt, Scope]]:
    """Yield the statements by which a batch changes a learning rate: group["lr"] *= 0.99, lr *= 0.99."""
    if not _changes(project):
        return
    rates = [(rate, scope) for node, scope in project.in_batches for rate in rates_set(project.analysis, node, scope)]
    origins = {node for place in rates for node, _ in project.ranks.origins(*place)}
    for (statement, target, value), scope in _changes(project):
        if _is_rate(project, target, scope) or value in origins:
            yield statement, scope


def changed_by(statement: ast.stmt) -> str:
    """Return the text of the variable that a statement changes."""
    found = _change(statement)
    return ast.unparse(found[1]) if found is not None else ""


def _changes(project: Project) -> list[tuple[Change, Scope]]:
    def find() -> list[tuple[Change, Scope]]:
        found = [
            (change, scope)
            for node, scope in project.in_batches
            if (change := _change(node)) and _is_own(project, change, scope)
        ]
        set_back = {_name(target) for node, _ in project.in_batches for target in _set_again(node)}
        return [(change, scope) for change, scope in found if _name(change[1]) not in set_back]

    return project.analysis.fact("numbers that batches change", find)


def _change(node: ast.AST) -> Change | None:
    """Return what a statement changes by its own value: x *= 0.9, x = max(x * 0.9, 0.1), x.mul_(0.9)."""
    if isinstance(node, ast.AugAssign):
        return None if _is_count(node.op, node.value) else (node, node.target, node.value)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, text = node.targets[0], ast.unparse(node.targets[0])
        operations = [part for part in walk(node.value) if isinstance(part, ast.BinOp)]  # not w = w.detach()
        inside = {inner for part in operations for inner in walk(part)}
        reads = [part for part in inside if isinstance(part, VARIABLES) and ast.unparse(part) == text]
        is_count = isinstance(node.value, ast.BinOp) and _is_count(node.value.op, node.value.right)
        is_changed = bool(reads) and isinstance(target, VARIABLES) and not (is_count and len(reads) == 1)
        return (node, target, node.value) if is_changed else None
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    is_operation = call.func.attr.endswith("_") and call.func.attr[:-1] in OPERATORS
    is_operation &= isinstance(call.func.value, VARIABLES)
    return (node, call.func.value, call.args[0]) if is_operation else None  # type: ignore[return-value]


def _is_count(op: ast.operator, value: ast.expr) -> bool:
    """Return whether one is added, or a number that says how many more there are: len(x)."""
    is_number = not isinstance(value, ast.Constant) or isinstance(value.value, int)
    return isinstance(op, (ast.Add, ast.Sub)) and is_number


def _set_again(node: ast.AST) -> list[ast.expr]:
    return list(node.targets) if isinstance(node, ast.Assign) and _change(node) is None else []


def _is_own(project: Project, change: Change, scope: Scope) -> bool:
    """Return whether a number that outlives the batch is changed by nothing of the batch, and once for each."""
    statement, target, value = change
    base: ast.expr = target
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    if isinstance(target, (ast.Name, ast.Subscript)) and not _outlives_batch(project, base, scope):
        return False
    sources = project.batch_values.sources_of
    if sources(value, scope) or sources(target, scope):
        return False
    places = project.ranks.origins(target, scope) if not _is_rate(project, target, scope) else ()
    calls = (part for node, _ in places for part in walk(node))
    if any(isinstance(part, ast.Call) and last_name(part) in PARAMETERS for part in calls):
        return False  # weights that are made smaller in each step, as the optimizer does it
    return not any(_is_once_per_epoch(project, test, scope) for test in _tests_around(statement, scope))


def _is_rate(project: Project, target: ast.expr, scope: Scope) -> bool:
    return isinstance(target, ast.Subscript) and is_rate_of_group(project.analysis, target, scope)


def _outlives_batch(project: Project, base: ast.expr, scope: Scope) -> bool:
    owner = (scope.find(base.id) or (scope, []))[0] if isinstance(base, ast.Name) else None
    frames = {frame.scope for path in project.paths for _, frame in path.loops}
    return owner is not None and (owner.parent is None or owner in frames)


def _tests_around(statement: ast.stmt, scope: Scope) -> list[ast.expr]:
    return [outer.test for outer in scope.source.ancestors(statement) if isinstance(outer, ast.If)]


def _is_once_per_epoch(project: Project, test: ast.expr, scope: Scope) -> bool:
    """Return whether a test holds for the last batch of the loader, or for one batch by its number."""
    if has_loader_length(project, test, scope):
        return True
    loops = [loop for path in project.paths for loop, _ in path.loops if isinstance(loop, (ast.For, ast.AsyncFor))]
    first = (loop.target.elts[0] for loop in loops if isinstance(loop.target, ast.Tuple))
    numbers = {part.id for part in first if isinstance(part, ast.Name)}
    is_one = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)
    compared = [test.left, *test.comparators] if is_one else [test.operand] if isinstance(test, ast.UnaryOp) else []  # type: ignore[attr-defined]
    return any(isinstance(part, ast.Name) and part.id in numbers for part in compared)


def _name(node: ast.expr) -> str:
    """Return the text of a variable; of an attribute its own name, as objects have several names."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)
