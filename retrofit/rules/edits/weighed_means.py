"""Weigh the mean over rows, of which ranks have different numbers, by the share that a rank has of them."""

from __future__ import annotations

import ast

from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.scopes import Scope
from retrofit.training import Project
from retrofit.training.data.batch_values import UNEVEN
from retrofit.training.losses.reductions.coupling import obstacle
from retrofit.training.losses.rows.uneven_rows import has_uneven_rows, is_share_of_rows


def weighed_mean(project: Project, node: ast.AST, scope: Scope) -> list[Edit]:
    """Return edits that multiply `errors.mean()` by the rows of this rank over its share of all; or none.

    The factor is 1 on one process. Not where a test chooses the rows: a rank may have none, of which no mean is.
    """
    values = _values(project, node, scope)
    if values is None or project.distribution.is_by_hand or not has_uneven_rows(project):
        return []
    if UNEVEN in project.batch_values.sources_of(values, scope) or obstacle(project, node, scope, together=True):  # type: ignore[arg-type]
        return []
    count = f"{ast.unparse(values)}.numel()"
    factor = f" * ({count} / rd.loss.rank_share(rd.loss.batch_count({count})))"
    is_alone = isinstance(scope.source.parents[node], (ast.Assign, ast.Return))
    return surround(scope.source, node, "" if is_alone else "(", factor if is_alone else f"{factor})")


def weighs_mean(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a mean has that factor already."""
    parent = scope.source.parents.get(node)
    is_product = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
    return is_product and is_share_of_rows(project.analysis, parent.right, scope)  # type: ignore[union-attr]


def _values(project: Project, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return the variable whose entries a mean is over, all of them; None for another expression."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return None
    is_torch = "torch" in project.analysis.named(node.func.value, scope)
    given = [*node.args] if is_torch else [node.func.value, *node.args]
    return given[0] if len(given) == 1 and isinstance(given[0], ast.Name) else None
