"""Tests whether a file is there, and what a script does where it is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from retrofit.analysis.calls import returns_of
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result, name_of
from retrofit.training.torch_api.files import EXISTS, EXISTS_METHODS, MISSING_ERRORS

BODY, ORELSE = "body", "orelse"
FLIPPED = {BODY: ORELSE, ORELSE: BODY, "": ""}


@dataclass(frozen=True)
class Missing:
    """What is done where something is missing, and what where it is there; `whole` is all of it, in one block."""

    node: ast.AST
    scope: Scope
    made: Sequence[ast.AST]
    otherwise: Sequence[ast.AST]
    whole: list[ast.stmt]
    paths: list[tuple[ast.expr, Scope]]  # what is asked for, as far as it can be seen


def missing_at(analysis: Analysis, node: ast.AST, scope: Scope) -> Missing | None:
    """Return what an `if` or a `try` does where a file is missing, None for one that does not ask for a file."""
    if isinstance(node, ast.Try):
        return _at_try(node, scope)
    if isinstance(node, ast.IfExp):
        return _at_choice(analysis, node, scope)
    side = _side(analysis, node.test, scope) if isinstance(node, ast.If) else ""
    if not side:
        return None
    assert isinstance(node, ast.If)
    paths = _paths(analysis, node.test, scope)
    if side == BODY:
        return Missing(node, scope, node.body, node.orelse, [node], paths)
    if node.orelse:
        return Missing(node, scope, node.orelse, node.body, [node], paths)
    block = block_of(scope.source, node)
    rest = block[block.index(node) + 1 :]
    loop = scope.source.parents[node]
    if isinstance(node.body[-1], ast.Continue) and isinstance(loop, (ast.For, ast.While)) and block is loop.body:
        return Missing(node, scope, rest, node.body, [loop], paths)  # rank 0 makes all that is missing, first
    if not returns(node.body):
        return None
    return Missing(node, scope, rest, node.body, [node, *rest], paths)


def returns(block: list[ast.stmt]) -> bool:
    """Return whether a block ends in a `return`, inside a `with` too."""
    last = block[-1]
    return returns(last.body) if isinstance(last, (ast.With, ast.AsyncWith)) else isinstance(last, ast.Return)


def _at_choice(analysis: Analysis, node: ast.IfExp, scope: Scope) -> Missing | None:
    """Return what `load(path) if exists(path) else build(path)` does."""
    side = _side(analysis, node.test, scope)
    if not side or isinstance(scope.node, ast.Lambda):
        return None
    made, otherwise = (node.body, node.orelse) if side == BODY else (node.orelse, node.body)
    whole = [scope.source.statement(node)]
    return Missing(node, scope, [made], [otherwise], whole, _paths(analysis, node.test, scope))


def _at_try(node: ast.Try, scope: Scope) -> Missing | None:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
        if MISSING_ERRORS & {ast.unparse(kind) for kind in kinds}:
            return Missing(node, scope, handler.body, node.body, [node], [])
    return None


def _side(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    """Return which branch of an `if` is for a missing file, "" where the test asks for none."""
    memory: Memory[str] = analysis.fact("sides of files", lambda: Memory(""))
    return memory.once((test, scope), lambda: _side_of(analysis, test, scope))


def _side_of(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return FLIPPED[_side(analysis, test.operand, scope)]
    if isinstance(test, ast.BoolOp):
        return next(filter(None, (_side(analysis, part, scope) for part in test.values)), "")
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        if _counted(analysis, test.left, scope):
            return _side_of_count(test.ops[0], test.comparators[0].value)
        value, is_equal = test.comparators[0].value, isinstance(test.ops[0], (ast.Eq, ast.Is))
        side = _side(analysis, test.left, scope) if isinstance(value, bool) else ""
        return side if is_equal is value else FLIPPED[side]
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id in ("any", "all") and test.args:
        return _side(analysis, getattr(test.args[0], "elt", test.args[0]), scope)
    if isinstance(test, (ast.Name, ast.Attribute)):
        return ORELSE if analysis.named(test, scope) & EXISTS else ""
    if not isinstance(test, ast.Call):
        return ""
    if is_asking(analysis, test, scope):
        return ORELSE
    functions = analysis.functions_called(test, scope)
    returned = [(value, f.scope) for f in functions for value in returns_of(f.node)]
    sides = [_side(analysis, value, where) for value, where in returned]
    sides += [_side_of_answer(analysis, value, where) for value, where in returned]
    return next(filter(None, sides), "")


def _side_of_answer(analysis: Analysis, value: ast.expr, scope: Scope) -> str:
    """Return the branch for a missing file of a test that calls a function with `if not exists(path): return False`."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, bool):
        return ""
    part: ast.AST = value
    for outer in scope.source.ancestors(value):
        if isinstance(outer, ast.If):
            is_missing = _side(analysis, outer.test, scope) == (BODY if is_in_body(outer, part) else ORELSE)
            return "" if not is_missing else BODY if value.value else ORELSE
        part = outer
    return ""


def _side_of_count(operator: ast.cmpop, number: object) -> str:
    """Return which branch is for missing files, by a comparison of how many of them are there with a number."""
    if isinstance(operator, (ast.Gt, ast.GtE)) or (isinstance(operator, ast.Eq) and number != 0):
        return ORELSE
    return BODY if isinstance(operator, (ast.Lt, ast.LtE, ast.Eq)) or number != 0 else ORELSE


def _counted(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[ast.Call, Scope]]:
    """Return what is asked for a number of files that are there: both of int(exists(a)) + int(exists(b))."""
    starts = [Origin(node, scope)] if isinstance(node, (ast.Name, ast.BinOp)) else []
    found = list(origins(analysis, starts, partial(_summands, analysis)))
    if not any(isinstance(origin.node, ast.BinOp) for origin in found):
        return []
    calls = [(origin.node, origin.scope) for origin in found if isinstance(origin.node, ast.Call)]
    return [(call, where) for call, where in calls if is_asking(analysis, call, where)]


def _summands(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    node = origin.node
    if isinstance(node, ast.BinOp):
        return [origin.to(node.left), origin.to(node.right)] if isinstance(node.op, ast.Add) else []
    is_number = isinstance(node, ast.Call) and analysis.called(node, origin.scope) & {"int", "bool"}
    return [origin.to(part) for part in node.args] if is_number else None  # type: ignore[union-attr]


def is_asking(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `os.path.exists(path)` or `path.exists()`."""
    if analysis.called(call, scope) & EXISTS:
        return True
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in EXISTS_METHODS and not call.args
    return is_method and not analysis.functions_called(call, scope)


def _paths(analysis: Analysis, test: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    calls = [(part, scope) for part in walk(test) if isinstance(part, ast.Call)]
    calls += _counted(analysis, test.left, scope) if isinstance(test, ast.Compare) else []
    for part in walk(test):
        if isinstance(part, (ast.Name, ast.Attribute)):
            values = analysis.evaluate(part, scope)
            calls += [(v.call, v.scope) for v in values if isinstance(v, Result) and name_of(v) in EXISTS]
    for call, where in list(calls):
        for function in analysis.functions_called(call, where):
            parts = [part for value in returns_of(function.node) for part in walk(value)]
            parts += [p for node in own_nodes(function.node).of(ast.If) for p in walk(node.test)]
            calls += [(part, function.scope) for part in parts if isinstance(part, ast.Call)]
    return [(_path(analysis, call, where), where) for call, where in calls if is_asking(analysis, call, where)]


def _path(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr:
    path = call.func.value if not call.args and isinstance(call.func, ast.Attribute) else call.args[0]
    is_made = isinstance(path, ast.Call) and len(path.args) == 1 and analysis.called(path, scope) & {"pathlib.Path"}
    return path.args[0] if is_made else path  # type: ignore[attr-defined]
