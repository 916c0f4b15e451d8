"""Processes that run a piece of code: tests of the rank around it, and returns before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.bindings import arguments_for, bindings_of
from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.memory import Memory, answered_once
from retrofit.analysis.nodes import COMPREHENSIONS, walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, name_of
from retrofit.training.placement import block_of
from retrofit.training.torch_api.distributed import ASKS_FOR_MAIN, MAIN_DECORATORS, MAIN_NAMES

from .rank_values import is_rank

# One process only; all but one; some that cannot be told; "" means every process.
MAIN, OTHERS, UNCLEAR = "main", "others", "unclear"
FLIPPED = {MAIN: OTHERS, OTHERS: MAIN}
OF_COMPREHENSIONS = (*COMPREHENSIONS, ast.comprehension)


@answered_once
def side_of(analysis: Analysis, scope: Scope, node: ast.AST) -> str:
    """Return which processes run a node when all of them run its function: MAIN, OTHERS, UNCLEAR, or "" for all."""
    found = [side for side, _ in _sides(analysis, scope, node) if side]
    return next((side for side in found if side != UNCLEAR), UNCLEAR if found else "")


def rank_tests(analysis: Analysis, scope: Scope, node: ast.AST) -> list[ast.AST]:
    """Return what lets some of the processes leave a node out, from the inside: an `if`, an `and`, an early return."""
    return [test for side, test in _sides(analysis, scope, node) if side]


def _sides(analysis: Analysis, scope: Scope, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield each test that a node is under, in the function, with the processes that come through."""
    inner = scope.source.chained(node)
    for outer in scope.source.ancestors(inner):
        if isinstance(inner, ast.stmt):
            yield from _left_before(analysis, scope, inner)
        if outer is scope.node:
            return
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            yield (side_of_test if is_in_body(outer, inner) else side_of_negated)(analysis, outer.test, scope), outer
        elif isinstance(outer, ast.BoolOp):
            for earlier in outer.values[: outer.values.index(inner)]:  # type: ignore[arg-type]
                is_and = isinstance(outer.op, ast.And)
                yield (side_of_test if is_and else side_of_negated)(analysis, earlier, scope), outer
        elif isinstance(outer, ast.While) and inner is not outer.test:
            yield side_of_test(analysis, outer.test, scope), outer
        elif isinstance(outer, OF_COMPREHENSIONS):
            yield from ((side_of_test(analysis, test, scope), outer) for test in _conditions(outer, inner))
        inner = outer


def _conditions(outer: ast.AST, inner: ast.AST) -> list[ast.expr]:
    """Return the tests of a comprehension that come before a part of it."""
    if isinstance(outer, ast.comprehension):
        return outer.ifs[: outer.ifs.index(inner)] if inner in outer.ifs else []  # type: ignore[arg-type]
    generators = outer.generators  # type: ignore[attr-defined]
    before = generators[: generators.index(inner)] if inner in generators else generators
    return [test for generator in before for test in generator.ifs]


def is_for_main(scope: Scope) -> bool:
    """Return whether a function has a decorator that lets rank 0 alone run it: `@rank_zero_only`."""
    return any(last_name(_undone(node)) in MAIN_DECORATORS for node in getattr(scope.node, "decorator_list", []))


def _undone(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _left_before(analysis: Analysis, scope: Scope, statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Yield which processes are left after `if rank != 0: return` in the same block."""
    known: dict[tuple[ast.stmt, Scope], list[tuple[ast.If, bool]]] = analysis.fact("tests that leave", dict)
    if (statement, scope) not in known:
        block = block_of(scope.source, statement)
        before = block[: block.index(statement)]
        known[statement, scope] = [test for earlier in before for test in _leaving(analysis, scope, earlier)]
    for test, is_left_by_body in known[statement, scope]:
        yield (side_of_negated if is_left_by_body else side_of_test)(analysis, test.test, scope), test


def _leaving(analysis: Analysis, scope: Scope, statement: ast.stmt) -> Iterator[tuple[ast.If, bool]]:
    """Yield the tests in a statement of which one arm leaves the block around, and whether it is the first one."""
    if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
        for inner in statement.body:
            yield from _leaving(analysis, scope, inner)
    elif isinstance(statement, ast.If):
        if _leaves(analysis, statement.body[-1], scope):
            yield statement, True
        elif statement.orelse and _leaves(analysis, statement.orelse[-1], scope):
            yield statement, False


def ends_program(analysis: Analysis, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether this is a statement like `sys.exit(main())`."""
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call and bool(analysis.called(statement.value, scope) & EXITS)  # type: ignore[attr-defined]


def _leaves(analysis: Analysis, statement: ast.stmt, scope: Scope) -> bool:
    return ends_program(analysis, statement, scope) or isinstance(
        statement, (ast.Return, ast.Continue, ast.Break, ast.Raise)
    )


def side_of_test(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    """Return for which processes a test holds; "" where it does not ask for the rank."""
    return _memory(analysis).once((test, scope), lambda: _side_of_test(analysis, test, scope))


def _memory(analysis: Analysis) -> Memory[str]:
    return analysis.fact("sides", lambda: Memory(""))


def _side_of_test(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return side_of_negated(analysis, test.operand, scope)
    if isinstance(test, ast.BoolOp):
        return _first(side_of_test(analysis, part, scope) for part in test.values)
    if isinstance(test, ast.Compare):
        return _side_of_comparison(analysis, test, scope)
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return _side_of_value(analysis, test, scope)
    return UNCLEAR if isinstance(test, ast.BinOp) and _counts_with_rank(analysis, test, scope) else ""


def _counts_with_rank(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a rank is part of an arithmetic expression: `rank % 2`."""
    parts = [part for part in walk(node) if isinstance(part, ast.BinOp)]
    return any(is_rank(analysis, side, scope) for part in parts for side in (part.left, part.right))


def side_of_negated(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    """Return for which processes a test does not hold; UNCLEAR for `is_best and rank == 0`, where that depends."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return side_of_test(analysis, test.operand, scope)
    side = side_of_test(analysis, test, scope)
    if side and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        rest = [part for part in test.values if not side_of_test(analysis, part, scope)]
        if not all(asks_for_group(part) for part in rest):
            return UNCLEAR
    return FLIPPED.get(side, side)


def asks_for_group(test: ast.expr) -> bool:
    """Return whether a test asks if there are several processes at all: `args.distributed`, `world_size > 1`."""
    names = {last_name(part).lower() for part in walk(test) if isinstance(part, (ast.Name, ast.Attribute))}
    return any(word in name for name in names for word in ("distributed", "initialized", "world_size", "ddp"))


def _first(sides: Iterable[str]) -> str:
    found = set(sides)
    return next((side for side in (MAIN, OTHERS, UNCLEAR) if side in found), "")


def _side_of_comparison(analysis: Analysis, test: ast.Compare, scope: Scope) -> str:
    if len(test.ops) != 1:
        return UNCLEAR if any(is_rank(analysis, part, scope) for part in (test.left, *test.comparators)) else ""
    left, right, operator = test.left, test.comparators[0], test.ops[0]
    if _is_none(right) and isinstance(operator, ast.IsNot):
        return MAIN if _exists_on_main_only(analysis, left, scope) else ""
    if is_rank(analysis, left, scope):
        return _compared(operator, right)
    if is_rank(analysis, right, scope) and isinstance(operator, (ast.Eq, ast.NotEq)):
        return _compared(operator, left)
    return UNCLEAR if any(_counts_with_rank(analysis, part, scope) for part in (left, right)) else ""


def _exists_on_main_only(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a variable is None everywhere but on rank 0: `writer = None; if rank == 0: writer = Writer()`."""
    question = ("exists", node, scope)
    return bool(_memory(analysis).once(question, lambda: MAIN if _is_made_on_main(analysis, node, scope) else ""))


def _is_made_on_main(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    placed = bindings_of(analysis, node, scope)
    given = [(binding.value, where) for binding, where in placed if binding.kind == "value" and not binding.path]
    if len(placed) == 1 and placed[0][0].kind == "parameter":
        given = arguments_for(analysis, placed[0][0].name, placed[0][1])
        return bool(given) and all(
            value is not None and _exists_on_main_only(analysis, value, where) for value, where in given
        )
    if len(given) != len(placed):
        return False
    made = [(value, where) for value, where in given if not _is_none(value)]
    sides = [_side_where_made(analysis, value, where) for value, where in made if value is not None]
    has_none = len(made) < len(given) or any(isinstance(value, ast.IfExp) for value, _ in made)
    return has_none and bool(sides) and all(side == MAIN for side in sides)


def _side_where_made(analysis: Analysis, value: ast.expr, scope: Scope) -> str:
    """Return which processes run an assignment, by the tests around it that ask for the rank itself."""
    if isinstance(value, ast.IfExp) and _is_none(value.orelse):
        return side_of_test(analysis, value.test, scope)
    inner: ast.AST = value
    for outer in scope.source.ancestors(value):
        if outer is scope.node:
            break
        if isinstance(outer, ast.If) and inner is not outer.test:
            side = (side_of_test if is_in_body(outer, inner) else side_of_negated)(analysis, outer.test, scope)
            if side:
                return side
        inner = outer
    return ""


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _compared(operator: ast.cmpop, other: ast.expr) -> str:
    """Return for which processes `rank OPERATOR other` holds. The rank -1 means: not distributed."""
    try:
        value = ast.literal_eval(other)
    except ValueError:
        return {ast.Eq: MAIN, ast.NotEq: OTHERS}.get(type(operator), UNCLEAR)
    if value is None or isinstance(value, (tuple, list, set)):
        if value is None or not isinstance(operator, (ast.In, ast.NotIn)):
            return ""
        side = MAIN if 0 in value else UNCLEAR
        return side if isinstance(operator, ast.In) else FLIPPED.get(side, side)
    if not isinstance(value, (int, str)):
        return UNCLEAR
    number = int(value) if str(value).lstrip("-").isdigit() else 0
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        side = MAIN if number >= 0 else ""
        return side if isinstance(operator, ast.Eq) else FLIPPED.get(side, side)
    least = number + isinstance(operator, (ast.Gt, ast.LtE))  # rank >= least, or rank < least
    side = "" if least < 1 else OTHERS if least == 1 else UNCLEAR
    return side if isinstance(operator, (ast.Gt, ast.GtE)) else FLIPPED.get(side, side)


def _side_of_value(analysis: Analysis, test: ast.expr, scope: Scope) -> str:
    """Return for which processes a variable or the result of a call is true."""
    if is_rank(analysis, test, scope):
        return OTHERS  # every rank but 0 is true
    values = analysis.evaluate(test, scope)
    if {name_of(value) for value in values} & ASKS_FOR_MAIN:
        return MAIN
    followed = [(value.node, value.scope) for value in values if isinstance(value, Display) and value.node is not test]
    side = _first(side_of_test(analysis, node, where) for node, where in followed)
    if not side and _exists_on_main_only(analysis, test, scope):
        return MAIN
    if not side and isinstance(test, ast.Call):
        side = _first(_sides_of_functions(analysis, test, scope))
    return side or (MAIN if last_name(test) in MAIN_NAMES else "")


def _sides_of_functions(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[str]:
    for function in analysis.functions_called(call, scope):
        for returned in returns_of(function.node):
            yield side_of_test(analysis, returned, function.scope)
