"""Names of what a tensor tells of its shape, its type and its device: nothing of it depends on its numbers."""

from __future__ import annotations

import ast

from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS

TELLS_SHAPE = SHAPE_ATTRIBUTES | SHAPE_METHODS


def is_about_shape(node: ast.AST) -> bool:
    """Return whether an expression asks for a shape, a type or a device: x.shape, x.size(0), len(x)."""
    asked = node.func if isinstance(node, ast.Call) else node
    if isinstance(asked, ast.Attribute):
        return asked.attr in TELLS_SHAPE
    return isinstance(node, ast.Call) and isinstance(asked, ast.Name) and asked.id in ("len", "isinstance")


def measured(node: ast.AST) -> list[ast.expr]:
    """Return `x` of x.shape, x.size(0) and len(x)."""
    asked = node.func if isinstance(node, ast.Call) else node
    if isinstance(asked, ast.Attribute):
        return [asked.value]
    return list(node.args[:1]) if isinstance(node, ast.Call) else []
