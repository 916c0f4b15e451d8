"""Decisions about a training that follow from what was measured: its end, its learning rate, what is kept."""

from __future__ import annotations

import ast

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.files import SAVES_STATE
from retrofit.training.torch_api.optimizers import ON_PLATEAU

from ..loops import LOOPS, Path
from .measurements import Known, name_in


def decides(analysis: Analysis, paths: list[Path], node: ast.AST, known: Known) -> bool:
    """Return whether this is plateau.step(value), or an `if` on a value that ends the training or keeps the best."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
        values = analysis.evaluate(node.func.value, known.scope)
        is_plateau = any(isinstance(value, Result) and value.builder == ON_PLATEAU for value in values)
        return is_plateau and any(known.holds(argument) for argument in (*node.args, *node.keywords))
    loops = {loop for path in paths for loop, _ in path.loops}
    if isinstance(node, ast.While):
        return node in loops and known.holds(node.test)
    if not isinstance(node, ast.If) or not known.holds(node.test):
        return False
    around = next((outer for outer in known.scope.source.ancestors(node) if isinstance(outer, LOOPS)), None)
    inside = [part for statement in node.body for part in walk(statement)]
    ends = around in loops and any(isinstance(part, ast.Break) for part in inside)
    return ends or any(_keeps(analysis, part, node.test, known.scope) for part in inside)


def _keeps(analysis: Analysis, node: ast.AST, test: ast.expr, scope: Scope) -> bool:
    """Return whether a statement under a test keeps what is best: saves, or sets what the test compares with."""
    if isinstance(node, ast.Call):
        return bool(analysis.called(node, scope) & SAVES_STATE)
    targets = [part for target in node.targets for part in walk(target)] if isinstance(node, ast.Assign) else []
    compared = {name for part in walk(test) if (name := name_in(part))} if isinstance(test, ast.Compare) else set()
    return any(name_in(part) in compared for part in targets)
