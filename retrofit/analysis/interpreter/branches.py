"""Values that differ between processes after a test by which they part."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..nodes import walk
from .state import OTHER, Flow, State, Variable, escaped

if TYPE_CHECKING:
    from .interpreter import Interpreter

CHECKS = "checks"  # a kind of showing
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def checked(run: Interpreter, node: ast.Assert | ast.If) -> Flow:
    """Return the value of a test, and take note where it ends the program by what a process has counted."""
    test = run.expressions.whole(run.expressions.of(node.test))
    is_check = isinstance(node, ast.Assert) or isinstance(node.body[-1], ast.Raise)
    if is_check and test.differs and run.domain.is_count_check(node.test, run.scope):
        run.show(node, CHECKS, [(node.test, test)])
    return test


def leaves(branch: list[ast.stmt]) -> bool:
    """Return whether statements end a loop or a function."""
    return any(isinstance(part, (ast.Break, ast.Return)) for statement in branch for part in walk(statement))


def depend_on(run: Interpreter, node: ast.If, test: Flow, before: State, ends: list[State]) -> None:
    """Let what branches have set differ as the test between them does, whatever they have set it to."""
    roots = escaped(test)
    is_set = {variable for target in _targets([*node.body, *node.orelse]) for variable in _variables(run, target)}
    for variable in is_set | {changed for end in ends for changed in end.changed_since(before)}:
        flow = run.memory.state.get(variable) if variable in before else None
        if flow is not None and not (flow.kind == OTHER and roots <= flow.roots):
            run.memory.state[variable] = Flow(OTHER, roots=roots | escaped(flow), cells=flow.cells)


def _targets(statements: list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what statements set, of which another value is there before."""
    for statement in statements:
        if isinstance(statement, NESTED):
            continue
        if isinstance(statement, ast.Assign):
            yield from statement.targets
        elif isinstance(statement, ast.AugAssign):
            yield statement.target
        for name in ("body", "orelse", "finalbody"):
            yield from _targets(getattr(statement, name, []))


def _variables(run: Interpreter, target: ast.expr) -> list[Variable]:
    if isinstance(target, ast.Name):
        return [(run.scope.outer_names.get(target.id, run.scope), target.id)]
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        cells = run.memory.load(target.value.id, run.scope).cells
        return [(cell, target.attr) for cell in cells] or [(run.root_scope(target), ast.unparse(target))]
    return []
