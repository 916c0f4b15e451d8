"""Numbers of a batch in which samples meet that have no more in common than their batch: a figure of one rank's own."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import COUNTS

from ..criteria.ignored_labels import counts_labels
from ..gathering.gathered import reader_of_values
from ..gathering.values import ONE_ROW, OTHER, OTHER_ORDER, SOME_ROWS, TAKEN_APART
from ..reductions.reduction import reader_of
from ..terms import terms_at
from .partners_in_loops import is_one_of_samples

if TYPE_CHECKING:
    from retrofit.training import Project

MOVED = {SOME_ROWS, OTHER_ORDER, TAKEN_APART}


def where_samples_meet(project: Project, node: ast.expr, scope: Scope) -> ast.expr | None:
    """Return what, in a mean or a sum over the batch, is computed from several samples of it; None where nothing is.

    A loss that counts its labels is left out: it is a mean over them. So are counts of entries, which are sums.
    """
    for part, where in reader_of(project).kind(node, scope).coupled:
        is_mean = any(counts_labels(project, term) for term in terms_at(project.analysis, part, where))
        if not is_mean and last_name(part) not in COUNTS:
            return part
    losses = (part for part in walk(node) if isinstance(part, ast.Call) and terms_at(project.analysis, part, scope))
    given = (part for loss in losses for part in (*loss.args, *(keyword.value for keyword in loss.keywords)))
    return next((part for part in given if _has_other_rows(project, part, scope)), None)


def _has_other_rows(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression has, in the place of the row of a sample, that of another one, or a part of them."""
    reader = reader_of_values(project)
    found = reader.value(node, scope)
    if found.kind != OTHER:
        return False
    return found.reason in MOVED or any(
        isinstance(part, ast.Subscript)
        and reader.value(part, scope).reason == ONE_ROW
        and is_one_of_samples(reader, part.value, scope)
        for part in walk(node)
    )
