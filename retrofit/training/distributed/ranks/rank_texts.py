"""Detect texts (a path, a message) that differ between processes."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.bindings import arguments_for, bindings_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .rank_guards import side_of_test
from .rank_values import is_rank


def mentions_rank(analysis: Analysis, node: ast.AST, scope: Scope, depth: int = 4) -> bool:
    """Return whether an expression differs between processes: the rank is part of it, or of what it is made of."""
    if depth == 0:
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.expr) and is_rank(analysis, part, scope):
            return True
        if isinstance(part, (ast.Name, ast.Attribute)):
            if side_of_test(analysis, part, scope):
                return True
            made = [(value, where) for value, where in _made_by(analysis, part, scope) if value is not node]
            if any(mentions_rank(analysis, value, where, depth - 1) for value, where in made):
                return True
    return False


def _made_by(analysis: Analysis, node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the texts, names and calls like os.path.join that a name, or an attribute, is assigned."""
    values: list[tuple[ast.expr | None, Scope]] = []
    for binding, where in bindings_of(analysis, node, scope):
        if binding.kind == "parameter":
            values += arguments_for(analysis, binding.name, where)
        elif binding.kind == "value" and not binding.path:
            values.append((binding.value, where))
    return [(value, where) for value, where in values if value is not None and _is_text(analysis, value, where)]


def _is_text(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Call):
        is_format = isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        return is_format or bool(analysis.called(node, scope) & {"os.path.join", "str", "pathlib.Path"})
    return isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Name, ast.Attribute))
