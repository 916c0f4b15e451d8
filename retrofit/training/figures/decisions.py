"""Detect branches that only some ranks take and that decide about the run: an end, a save, what is kept."""

from __future__ import annotations

import ast
from collections.abc import Collection

from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import ADDS_ONE, EXITS
from retrofit.analysis.scopes import Scope, own_nodes

from .sinks import Sinks

ENDING = {name.rpartition(".")[2] for name in EXITS} | {"stop"}
OF_STATE = ("state_dict", "deepcopy", "load_state_dict")


def decides(branch: list[ast.stmt], scope: Scope, sinks: Sinks, trained: set[str]) -> bool:
    """Return whether a branch decides about the run, or about the loss, which is computed from the names `trained`."""
    if isinstance(branch[-1], ast.Raise):
        return False  # an error in one process ends all of them
    for statement in branch:
        for node in walk(statement):
            if isinstance(node, (ast.Break, ast.Return)):
                return True
            if isinstance(node, ast.Call) and _matters(node, scope, sinks):
                return True
            if isinstance(node, (ast.Assign, ast.AugAssign)) and _targets(node) & trained:
                return True
    return any(_keeps(statement) for statement in branch)


def compares_count(loops: Collection[ast.AST], test: ast.expr, scope: Scope) -> bool:
    """Return whether a test says that a number is another one, or is not, after a loop over batches has counted."""
    if not isinstance(test, ast.Compare) or len(test.ops) > 1 or not isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        return False
    around = set(scope.source.ancestors(test))
    own = [loop for loop in loops if loop in own_nodes(scope.node)]
    return around.isdisjoint(loops) and any((loop.end_lineno or 0) < test.lineno for loop in own)  # type: ignore[attr-defined]


def _targets(node: ast.Assign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {ast.unparse(target) for target in targets}


def _matters(call: ast.Call, scope: Scope, sinks: Sinks) -> bool:
    if sinks.of(call, scope, True) not in ("", "passed on"):
        return True
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ENDING or name in OF_STATE or "save" in name


def _keeps(statement: ast.stmt) -> bool:
    """Return whether a statement keeps a number or a text: patience += 1, stop = True, hits.append(1.0)."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        is_added = isinstance(call.func, ast.Attribute) and call.func.attr in ADDS_ONE
        return is_added and bool(call.args) and all(isinstance(given, ast.Constant) for given in call.args)
    return isinstance(statement, (ast.AugAssign, ast.Assign)) and isinstance(statement.value, ast.Constant)
