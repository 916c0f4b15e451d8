"""Pairs of samples by two lists of places: z[i] - z[j], where i, j = torch.triu_indices(len(z), len(z), 1)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import PLACES_OF_PAIRS

if TYPE_CHECKING:
    from retrofit.training import Project

Operands = tuple[ast.expr, ast.expr]


def indexed_pair(project: Project, node: ast.AST, scope: Scope) -> Operands | None:
    """Return the tensor, twice, of which an operation takes rows at the two places of each pair; None for others."""
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call):
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        parts = [part for part in (*receiver, *node.args) if isinstance(part, ast.Subscript)]
    else:
        return None
    if len(parts) != 2 or not all(isinstance(part, ast.Subscript) for part in parts):
        return None
    left, right = parts
    assert isinstance(left, ast.Subscript) and isinstance(right, ast.Subscript)
    if ast.unparse(left.value) != ast.unparse(right.value) or ast.unparse(left.slice) == ast.unparse(right.slice):
        return None
    are_pairs = all(_is_of_pairs(project, part.slice, scope) for part in (left, right))
    return (left.value, right.value) if are_pairs else None


def _is_of_pairs(project: Project, index: ast.expr, scope: Scope) -> bool:
    """Return whether an index is computed from the places of all pairs."""
    found = (origin.node for origin in computed_from(project.analysis, index, scope))
    return any(isinstance(part, ast.Call) and last_name(part) in PLACES_OF_PAIRS for part in found)
