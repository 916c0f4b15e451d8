"""The value of a variable when a loop begins."""

from __future__ import annotations

import ast

from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.tensors import ZEROS

from ..loops import LOOPS
from ..placement import block_of


def start_statement(scope: Scope, loop: ast.stmt, name: str) -> ast.stmt | None:
    """Return the last statement that gives a name its value before a loop, if every run of the loop passes it."""
    before = [
        statement
        for statement in own_nodes(scope.node)
        if isinstance(statement, ast.stmt) and place_of(statement) < place_of(loop) and name in _names_set_by(statement)
    ]
    if not before:
        return None
    last = max(before, key=place_of)
    return last if is_passed_before(scope.source, last, loop) else None


def is_passed_before(source: Source, statement: ast.stmt, loop: ast.stmt) -> bool:
    """Return whether `statement` runs just before every run of `loop`."""
    around = [loop, *source.ancestors(loop)]
    block = block_of(source, statement)
    holder = next((outer for outer in around if outer in block), None)
    if holder is None:
        return False
    inside = around[1 : around.index(holder) + 1]
    return not any(isinstance(outer, LOOPS) for outer in inside)


def is_zero(analysis: Analysis, statement: ast.stmt, name: str, scope: Scope) -> bool:
    """Return whether an assignment sets a name to zero, or to an array of zeros."""
    value = value_given(statement, name)
    return value is not None and is_zero_value(analysis, value, scope)


def value_given(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what an assignment gives to a name, through tuples of equal length."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return statement.value
        parts = target.elts if isinstance(target, ast.Tuple) else []
        values = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
        for part, value in zip(parts, values) if len(parts) == len(values) else ():
            if isinstance(part, ast.Name) and part.id == name:
                return value
    return None


def _names_set_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {part.id for target in targets for part in walk(target) if isinstance(part, ast.Name)}
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return {part.id for part in walk(statement.target) if isinstance(part, ast.Name)}
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        return {part.id for target in targets for part in walk(target) if isinstance(part, ast.Name)}
    return set()


def is_zero_value(analysis: Analysis, value: ast.expr, scope: Scope) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool) and value.value == 0
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda", "astype", "double", "long"):
        return is_zero_value(analysis, value.func.value, scope)
    names = analysis.called(value, scope)
    if names & {"torch.tensor", "float", "int"} and len(value.args) == 1:
        return is_zero_value(analysis, value.args[0], scope)
    return bool(names) and names <= ZEROS
