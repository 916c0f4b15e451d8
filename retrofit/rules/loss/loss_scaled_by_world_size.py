"""RF301 loss-scaled-by-world-size: a mean over the batch is multiplied by the number of processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Display, name_of
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.losses.terms import MEAN, loss_expressions, term_of

RULE = CATALOG["RF301"]
INVALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    (loss * rd.get_world_size()).backward()
""",
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss *= rd.get_world_size()  # RF301
    loss.backward()
""",
    """\
world_size = dist.get_world_size()
for images, labels in loader:
    loss = criterion(model(images), labels) / 4
    loss = loss * world_size  # RF301
    loss.backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
""",
    # a sum over the batch: DDP divides it by the number of processes
    """\
for images, labels in loader:
    loss = F.cross_entropy(model(images), labels, reduction="sum")
    (loss * rd.get_world_size()).backward()
""",
    # divided by a number of all processes
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss = loss * len(images) * rd.get_world_size() / rd.reduce_total(len(images))
    loss.backward()
""",
    # what is shown
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
    print(loss.item() * rd.get_world_size())
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.wraps:
        return
    seen: set[ast.AST] = set()
    for path in project.paths:
        for expression, scope in loss_expressions(path):
            for node in (*walk(expression), *_in_place(expression, scope)):
                if node not in seen and _is_scaled_mean(project, node, scope):
                    seen.add(node)
                    yield found(RULE, scope.source, node, "a mean loss is multiplied by the number of processes")


def _in_place(expression: ast.expr, scope: Scope) -> list[ast.AST]:
    """Return the statement `loss *= factor` of which the expression is the factor."""
    statement = scope.source.parents.get(expression)
    return [statement] if isinstance(statement, ast.AugAssign) else []


def _is_scaled_mean(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is mean * world_size, and nothing is done with the product that may undo the factor."""
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Mult):
        return False
    if isinstance(node, ast.AugAssign):
        return project.ranks.is_world_size(node.value, scope) and _is_mean(project, node.target, scope)
    if isinstance(scope.source.parents.get(node), ast.BinOp):
        return False
    pairs = ((node.left, node.right), (node.right, node.left))
    return any(project.ranks.is_world_size(b, scope) and _is_mean(project, a, scope) for a, b in pairs)


def _is_mean(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a mean that a loss function of torch has taken over the batch, and no more."""
    if not isinstance(node, ast.Name):
        return _is_plain_mean(project, node, scope)
    made: list[bool] = []
    for binding in scope.bindings.get(node.id, []):
        if binding.node.lineno > node.lineno:  # type: ignore[attr-defined]
            continue  # set again after it is used
        if isinstance(binding.node, ast.AugAssign):
            if not _is_scaled_by_world(project, binding.node, scope):
                return False
        elif binding.value is None or binding.path:
            return False
        elif not (isinstance(binding.value, ast.BinOp) and _holds(binding.value, node.id)):
            made.append(_is_plain_mean(project, binding.value, scope))
        elif not _is_scaled_by_world(project, binding.value, scope):
            return False
    return bool(made) and all(made)


def _is_plain_mean(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is criterion(output, target), perhaps divided by a setting: the number of micro batches."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        values = project.analysis.evaluate(node.right, scope)
        is_setting = all(
            (isinstance(value, Display) and isinstance(value.node, ast.Constant))
            or name_of(value).startswith("argparse.ArgumentParser")
            for value in values
        )
        return bool(values) and is_setting and _is_plain_mean(project, node.left, scope)
    term = term_of(project.analysis, node, scope)
    return term is not None and term.reduction == MEAN


def _is_scaled_by_world(project: Project, node: ast.BinOp | ast.AugAssign, scope: Scope) -> bool:
    if not isinstance(node.op, ast.Mult):
        return False
    parts = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
    return any(project.ranks.is_world_size(part, scope) for part in parts)


def _holds(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in walk(node))
