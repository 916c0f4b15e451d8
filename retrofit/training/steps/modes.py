"""The mode that a module is in at a place, as far as the statements before it tell: `model.eval()`."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS

LOOPS = (ast.For, ast.AsyncFor, ast.While)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


def mode_before(source: Source, node: ast.AST, name: str) -> ast.expr | None:
    """Return True or False as written for the mode that a module has been put into before a node of its function.

    Another expression where that is set, but not known; None where nothing in the function sets it before.
    """
    for outer in (node, *source.ancestors(node)):
        if isinstance(outer, DEFINITIONS):
            break
        block = block_of(source, outer) if isinstance(outer, ast.stmt) else []
        for statement in reversed(block[: block.index(outer)] if outer in block else []):  # type: ignore[arg-type]
            calls = _calls(statement, name)
            if calls:
                return _mode(calls[0]) if isinstance(statement, ast.Expr) else calls[0]
        again = _calls(outer, name) if isinstance(outer, LOOPS) else []  # what a turn sets is so in the next one
        if again:
            return again[0]
    return None


def _calls(statement: ast.AST, name: str) -> list[ast.Call]:
    if isinstance(statement, DEFINITIONS):
        return []
    return [part for part in walk(statement) if isinstance(part, ast.Call) and _sets_mode(part, name)]


def _sets_mode(call: ast.Call, name: str) -> bool:
    place = call.func
    return isinstance(place, ast.Attribute) and place.attr in ("train", "eval") and last_name(place.value) == name


def _mode(call: ast.Call) -> ast.expr:
    if call.func.attr == "eval":  # type: ignore[attr-defined]
        return ast.Constant(False)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return given[0] if given else ast.Constant(True)
