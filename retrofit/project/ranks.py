"""Which processes a piece of code runs on: tests for the rank around it, and returns before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .analysis import Analysis
from .calls import returns_of
from .placement import block_of
from .scopes import FUNCTIONS, Scope, own_nodes, parameters
from .values import Display, Item, LocalFunction, Result, Value, name_of

# One process only; all but one; some that cannot be told; "" stands for every process.
MAIN, OTHERS, UNCLEAR = "main", "others", "unclear"
FLIPPED = {MAIN: OTHERS, OTHERS: MAIN}
ASKING = {"torch.distributed.get_rank", "retrofit.distributed.get_rank", "retrofit.distributed.get_local_rank"}
ASKING_MAIN = {"retrofit.distributed.is_main_process", "torch.distributed.is_main_process"}
VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
# What people call such a variable or function, for those that cannot be followed.
MAIN_NAMES = {"is_main_process", "is_main", "is_master", "is_chief", "is_rank_zero", "is_primary", "is_rank0"}
STARTING = {"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"}
LEAVING = {"sys.exit", "exit", "quit", "os._exit"}
MOST_DEPTH = 6


def side_of(analysis: Analysis, scope: Scope, node: ast.AST) -> str:
    """Return which processes run a node when all of them run its function: MAIN, OTHERS, UNCLEAR, or "" for all."""
    found = [side for side in _sides(analysis, scope, node) if side]
    return next((side for side in found if side != UNCLEAR), UNCLEAR if found else "")


def _sides(analysis: Analysis, scope: Scope, node: ast.AST) -> Iterator[str]:
    inner = node
    for outer in scope.source.ancestors(node):
        if isinstance(inner, ast.stmt):
            yield from _left_before(analysis, scope, inner)
        if outer is scope.node:
            return
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            side = side_of_test(analysis, outer.test, scope)
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            yield side if inner in body else FLIPPED.get(side, side)
        elif isinstance(outer, ast.BoolOp):
            for earlier in outer.values[: outer.values.index(inner)]:  # type: ignore[arg-type]
                side = side_of_test(analysis, earlier, scope)
                yield side if isinstance(outer.op, ast.And) else FLIPPED.get(side, side)
        inner = outer


def _left_before(analysis: Analysis, scope: Scope, statement: ast.stmt) -> Iterator[str]:
    """Yield who is left behind `if rank != 0: return` in the same block."""
    block = block_of(scope.source, statement)
    for earlier in block[: block.index(statement)]:
        if isinstance(earlier, ast.If) and not earlier.orelse and _leaves(earlier.body[-1]):
            side = side_of_test(analysis, earlier.test, scope)
            yield FLIPPED.get(side, side)


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in LEAVING
    return isinstance(statement, (ast.Return, ast.Continue, ast.Break, ast.Raise))


def side_of_test(analysis: Analysis, test: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> str:
    """Return for which processes a test holds; "" where it does not ask for the rank."""
    if depth == 0:
        return ""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        side = side_of_test(analysis, test.operand, scope, depth - 1)
        return FLIPPED.get(side, side)
    if isinstance(test, ast.BoolOp):
        return _first(side_of_test(analysis, part, scope, depth - 1) for part in test.values)
    if isinstance(test, ast.Compare):
        return _side_of_comparison(analysis, test, scope)
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return _side_of_value(analysis, test, scope, depth)
    return ""


def _first(sides: Iterable[str]) -> str:
    found = set(sides)
    return next((side for side in (MAIN, OTHERS, UNCLEAR) if side in found), "")


def _side_of_comparison(analysis: Analysis, test: ast.Compare, scope: Scope) -> str:
    if len(test.ops) != 1:
        return UNCLEAR if any(is_rank(analysis, part, scope) for part in (test.left, *test.comparators)) else ""
    left, right, operator = test.left, test.comparators[0], test.ops[0]
    if is_rank(analysis, left, scope):
        return _compared(operator, right)
    if is_rank(analysis, right, scope) and isinstance(operator, (ast.Eq, ast.NotEq)):
        return _compared(operator, left)
    return ""


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


def _side_of_value(analysis: Analysis, test: ast.expr, scope: Scope, depth: int) -> str:
    """Return for which processes a variable or the result of a call is true."""
    if is_rank(analysis, test, scope):
        return OTHERS  # every rank but 0 is true
    values = analysis.evaluate(test, scope)
    if {name_of(value) for value in values} & ASKING_MAIN:
        return MAIN
    followed = [(value.node, value.scope) for value in values if isinstance(value, Display) and value.node is not test]
    side = _first(side_of_test(analysis, node, where, depth - 1) for node, where in followed)
    if not side and isinstance(test, ast.Call):
        side = _first(_sides_of_functions(analysis, test, scope, depth))
    return side or (MAIN if _last_name(test) in MAIN_NAMES else "")


def _sides_of_functions(analysis: Analysis, call: ast.Call, scope: Scope, depth: int) -> Iterator[str]:
    for function in analysis.functions_called(call, scope):
        for returned in returns_of(function.node):
            yield side_of_test(analysis, returned, function.scope, depth - 1)


def is_rank(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression is the number of the process, or tells it as `rank % num_gpus` does."""
    if depth == 0:
        return False
    if isinstance(node, ast.BinOp):
        return any(is_rank(analysis, part, scope, depth - 1) for part in (node.left, node.right))
    if isinstance(node, ast.Call) and analysis.called(node, scope) & {"int", "str"} and node.args:
        return is_rank(analysis, node.args[0], scope, depth - 1)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return False
    if _is_variable(node) or is_given_by_start(analysis, node, scope):
        return True
    values = analysis.evaluate(node, scope)
    if any(_is_rank_value(analysis, value, node, depth) for value in values):
        return True
    return _is_called_rank(_last_name(node)) and not any(_is_something_else(value, node) for value in values)


def _is_rank_value(analysis: Analysis, value: Value, node: ast.expr, depth: int) -> bool:
    if name_of(value) in ASKING:
        return True
    made = getattr(value, "node", None) if isinstance(value, Display) else getattr(value, "call", None)
    is_other = isinstance(made, (ast.BinOp, ast.Call)) and made is not node
    return is_other and is_rank(analysis, made, value.scope, depth - 1)  # type: ignore[arg-type, union-attr]


def _is_something_else(value: Value, node: ast.expr) -> bool:
    """Return whether what is called a rank is known to be no process: the place of a hit, the counter of a loop."""
    return isinstance(value, Item) or (isinstance(value, Result) and value.call is not node)


def _is_variable(node: ast.expr) -> bool:
    """Return whether this reads os.environ["RANK"] or its like."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in VARIABLES
    if isinstance(node, ast.Call) and _last_name(node) in ("get", "getenv") and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in VARIABLES
    return False


def _is_called_rank(name: str) -> bool:
    return name.lower().rpartition("_")[2] == "rank"


def is_given_by_start(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a name is the first parameter of a function that torch.multiprocessing.spawn starts."""
    if not isinstance(node, ast.Name) or not isinstance(scope.node, FUNCTIONS):
        return False
    if parameters(scope.node)[:1] != [node.id]:
        return False
    for other in analysis.scopes():
        for call in own_nodes(other.node):
            if isinstance(call, ast.Call) and call.args and analysis.called(call, other) & STARTING:
                started = analysis.evaluate(call.args[0], other)
                if any(isinstance(value, LocalFunction) and value.scope is scope for value in started):
                    return True
    return False


def mentions_rank(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether an expression differs between processes because the rank is part of it."""
    if any(isinstance(part, ast.expr) and is_rank(analysis, part, scope) for part in ast.walk(node)):
        return True
    names = [part for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))]
    values = [value for name in names for value in analysis.evaluate(name, scope) if isinstance(value, Display)]
    return any(
        isinstance(part, ast.expr) and is_rank(analysis, part, value.scope)
        for value in values
        for part in ast.walk(value.node)
    ) or any(side_of_test(analysis, name, scope) for name in names)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
