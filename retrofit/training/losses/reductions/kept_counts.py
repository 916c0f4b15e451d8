"""Counts of samples next to sums over those of all ranks: in a running mean that a module keeps, in weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.scopes import Scope
from retrofit.training.data.carried_state import carried_writes, has_samples_of_batch

from ..writes import Write, writes_of
from .coupling import coupled_nodes, couplings, has_statistics_alone
from .kinds import SUM
from .reduction import reader_of

if TYPE_CHECKING:
    from retrofit.training import Project


def kept_counts(project: Project) -> list[tuple[ast.expr, Scope]]:
    """Return the counts that have to be of all ranks, as the sums over the batch are that they come with.

    What is added to the counts of objects that keep such sums; `len(w)` of `w / w.sum() * len(w)`.
    """
    classes = {write.scope.parent for write in carried_writes(project) if _keeps_sum(project, write)}
    found: dict[ast.expr, Scope] = {}
    for node, scope in project.in_batches.of(ast.AugAssign, ast.Call, ast.Assign) if classes - {None} else ():
        if scope.parent in classes:
            found.update((value, scope) for value in _added(node) if _counts(project, value, scope))
    couplings(project)  # all losses are read
    return list({**found, **reader_of(project).counts_of_all}.items())


def _keeps_sum(project: Project, write: Write) -> bool:
    """Return whether a statistic that is kept is a sum which is made that of all ranks."""
    reader = reader_of(project)
    if not has_statistics_alone(project, write):
        return False
    leaves = {leaf for leaf, _ in reader.kind(write.value, write.scope).leaves} & coupled_nodes(project)
    return any(reader.reductions.get(leaf) == {SUM} for leaf in leaves)


def _added(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what is added to an attribute of the object: self.count += n, self.count = self.count + n."""
    for place, value, is_in_place in writes_of(node):
        if not isinstance(place, ast.Attribute) or not isinstance(place.value, ast.Name):
            continue
        if isinstance(node, ast.Assign) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            parts = {ast.unparse(part): part for part in (value.left, value.right)}
            own = parts.pop(ast.unparse(place), None)
            yield from parts.values() if own is not None else ()
        elif is_in_place and (isinstance(node, ast.Call) or isinstance(getattr(node, "op", None), ast.Add)):
            yield value


def _counts(project: Project, value: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from the number of samples, or of entries, that a batch has."""
    steps = [step for step in computed_from(project.analysis, value, scope) if step.scope is scope]
    counted = [of for step in steps for of in counted_in(step.node)]
    return bool(counted) and any(has_samples_of_batch(project, of, scope) for of in counted)


def counted_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield `x` of len(x), x.shape[0], x.size(0) and x.numel()."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        if isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            yield node.value.value
    elif isinstance(node, ast.Call) and last_name(node) == "len" and node.args:
        yield node.args[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_first = node.func.attr == "size" and [ast.unparse(given) for given in node.args] == ["0"]
        if is_first or node.func.attr == "numel":
            yield node.func.value
