"""Detect texts (a path, a message) that differ between processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from retrofit.analysis.flow.operands import operands
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .rank_guards import side_of_test
from .rank_values import is_rank


def mentions_rank(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression differs between processes: the rank is part of it, or of what it is made of."""
    for part, where, _ in origins(analysis, [Origin(node, scope)], partial(_parts, analysis)):
        if isinstance(part, ast.expr) and is_rank(analysis, part, where):
            return True
        if isinstance(part, (ast.Name, ast.Attribute)) and side_of_test(analysis, part, where):
            return True
    return False


def _parts(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    """Yield the parts of a text, and the texts, names and calls like os.path.join that it has from a variable."""
    yield from (origin.to(part) for part in operands(origin.node))
    made = sources(analysis, origin) if isinstance(origin.node, (ast.Name, ast.Attribute)) else ()
    yield from (text for text in made if not text.keys and _is_text(analysis, text.node, text.scope))


def _is_text(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, ast.Call):
        is_format = isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        return is_format or bool(analysis.called(node, scope) & {"os.path.join", "str", "pathlib.Path"})
    return isinstance(node, (ast.JoinedStr, ast.BinOp, ast.AugAssign, ast.Name, ast.Attribute))
