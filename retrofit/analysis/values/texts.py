"""Texts that expressions can be, as far as they are written down, and code that is one: `eval("nn.MSELoss")`."""

from __future__ import annotations

import ast
from itertools import product
from typing import TYPE_CHECKING

from ..files.named_imports import ANYTHING, texts_of_option
from ..nodes import walk
from ..scopes import Scope
from .kinds import Display, Member

if TYPE_CHECKING:
    from .inference import Analysis

MOST_DEPTH = 4  # of texts that are put together from others


def texts_of(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> set[str]:
    """Return the texts that an expression can be, without those that are not written down.

    An option of the command line can be its default and each of its choices.
    """
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if depth == 0:
        return set()
    if isinstance(node, (ast.JoinedStr, ast.BinOp)):
        parts = [texts_of(analysis, part, scope, depth - 1) for part in _joined(node)]
        return {"".join(texts) for texts in product(*parts)} if parts else set()
    found: set[str] = set()
    for value in analysis.evaluate(node, scope):
        if isinstance(value, Display) and value.node is not node:
            found |= texts_of(analysis, value.node, value.scope, depth - 1)
        elif isinstance(value, Member):
            found |= _of_option(analysis, value.name)
    return found


def is_open(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is an option of the command line that may be given any text."""
    values = analysis.evaluate(node, scope)
    return any(isinstance(value, Member) and ANYTHING in _all_of_option(analysis, value.name) for value in values)


def _joined(node: ast.JoinedStr | ast.BinOp) -> list[ast.expr]:
    """Return the parts of a text that is put together, none where it is something else."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right] if isinstance(node.op, ast.Add) else []
    return [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]


def _of_option(analysis: Analysis, name: str) -> set[str]:
    return _all_of_option(analysis, name) - {ANYTHING}


def _all_of_option(analysis: Analysis, name: str) -> set[str]:
    known: dict[str, set[str]] = analysis.fact("texts of options", dict)
    if name not in known:
        calls = (call for source in analysis.modules.sources.values() for call in source.nodes.of(ast.Call))
        known[name] = texts_of_option(name, calls)
    return known[name]


def evaluated(analysis: Analysis, call: ast.Call, scope: Scope) -> list[ast.expr]:
    """Return the expressions that `eval(text)` can compute, each at the place of the call."""
    known: dict[ast.Call, list[ast.expr]] = analysis.fact("evaluated texts", dict)
    if call not in known:
        texts = texts_of(analysis, call.args[0], scope) if call.args else set()
        known[call] = [node for text in sorted(texts) for node in _parsed(text)]
        for node in known[call]:
            scope.source.parents[node] = scope.source.parents[call]
            for part in walk(node):
                ast.copy_location(part, call)
                scope.source.parents.update((child, part) for child in ast.iter_child_nodes(part))
    return known[call]


def _parsed(text: str) -> list[ast.expr]:
    try:
        return [ast.parse(text.strip(), mode="eval").body]
    except (SyntaxError, ValueError):
        return []
