"""Places where a summed loss is shown divided by the number of samples."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.scopes import Scope
from retrofit.training.distributed.reductions import Reduction, reduce_value

from .divisions import SIZE, Reader, without_guard
from .reductions.samples import looks_like_size

if TYPE_CHECKING:
    from .. import Project

READING = (ast.Attribute, ast.Call)


def is_without_gradients(node: ast.AST, scope: Scope) -> bool:
    """Return whether a node is in a `with torch.no_grad()` of its function, where counts are of one rank."""
    withs = (outer for outer in scope.source.ancestors(node) if isinstance(outer, (ast.With, ast.AsyncWith)))
    contexts = (last_name(item.context_expr) for outer in withs for item in outer.items)
    return any(name in ("no_grad", "inference_mode") for name in contexts)


def quotient_edits(project: Project, loss: ast.expr, scope: Scope) -> list[Edit | Reduction]:
    """Return the edits of `loss.item() / len(images)`: the sum over all ranks is divided by the samples of all."""
    source, node = scope.source, loss
    outer = source.parents.get(node)
    while isinstance(outer, READING) or (isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult)):
        node, outer = outer, source.parents.get(outer)
    if not isinstance(outer, ast.BinOp) or not isinstance(outer.op, ast.Div) or outer.left is not node:
        return []
    if is_without_gradients(node, scope):
        return []
    reader = Reader(project.analysis, project.batch_values, project.distribution)
    is_size = reader.kind_of(outer.right, scope) == SIZE
    if (outer.right, scope) in project.batch_sizes:
        return [*surround(source, outer.right, "rd.loss.global_batch(", ")")]
    if not is_size and not looks_like_size(project.analysis, outer.right, scope):
        return []
    return [reduce_value(scope, without_guard(outer.right), "rd.loss.batch_count")]
