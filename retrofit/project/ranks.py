"""Which processes a piece of code runs on: tests for the rank around it, and returns before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .analysis import Analysis
from .calls import argument_for, is_method, returns_of
from .placement import block_of
from .scopes import FUNCTIONS, Scope, parameters
from .values import Display, Instance, Item, Result, Value, name_of

# One process only; all but one; some that cannot be told; "" stands for every process.
MAIN, OTHERS, UNCLEAR = "main", "others", "unclear"
FLIPPED = {MAIN: OTHERS, OTHERS: MAIN}
ASKING = {"torch.distributed.get_rank", "retrofit.distributed.get_rank", "retrofit.distributed.get_local_rank"}
ASKING_MAIN = {"retrofit.distributed.is_main_process", "torch.distributed.is_main_process"}
VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
# What people call such a variable or function, for those that cannot be followed.
MAIN_NAMES = {"is_main_process", "is_main", "is_master", "is_chief", "is_rank_zero", "is_primary", "is_rank0"}
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
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            is_body = inner in body
            yield (side_of_test if is_body else side_of_negated)(analysis, outer.test, scope)
        elif isinstance(outer, ast.BoolOp):
            for earlier in outer.values[: outer.values.index(inner)]:  # type: ignore[arg-type]
                is_and = isinstance(outer.op, ast.And)
                yield (side_of_test if is_and else side_of_negated)(analysis, earlier, scope)
        inner = outer


def _left_before(analysis: Analysis, scope: Scope, statement: ast.stmt) -> Iterator[str]:
    """Yield who is left behind `if rank != 0: return` in the same block."""
    block = block_of(scope.source, statement)
    for earlier in block[: block.index(statement)]:
        if isinstance(earlier, ast.If) and not earlier.orelse and _leaves(earlier.body[-1]):
            yield side_of_negated(analysis, earlier.test, scope)


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in LEAVING
    return isinstance(statement, (ast.Return, ast.Continue, ast.Break, ast.Raise))


def side_of_test(analysis: Analysis, test: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> str:
    """Return for which processes a test holds; "" where it does not ask for the rank."""
    if depth == 0:
        return ""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return side_of_negated(analysis, test.operand, scope, depth - 1)
    if isinstance(test, ast.BoolOp):
        return _first(side_of_test(analysis, part, scope, depth - 1) for part in test.values)
    if isinstance(test, ast.Compare):
        return _side_of_comparison(analysis, test, scope)
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return _side_of_value(analysis, test, scope, depth)
    return ""


def side_of_negated(analysis: Analysis, test: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> str:
    """Return for which processes a test does not hold; UNCLEAR for `is_best and rank == 0`, where that depends."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return side_of_test(analysis, test.operand, scope, depth - 1)
    side = side_of_test(analysis, test, scope, depth)
    if side and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        rest = [part for part in test.values if not side_of_test(analysis, part, scope, depth - 1)]
        if not all(_asks_for_group(part) for part in rest):
            return UNCLEAR
    return FLIPPED.get(side, side)


def _asks_for_group(test: ast.expr) -> bool:
    """Return whether a test asks if there are several processes at all: `args.distributed`, `world_size > 1`."""
    names = {_last_name(part).lower() for part in ast.walk(test) if isinstance(part, (ast.Name, ast.Attribute))}
    return any(word in name for name in names for word in ("distributed", "initialized", "world_size", "ddp"))


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
    if any(is_rank(analysis, given, where, depth - 1) for given, where in _given_for(analysis, node, scope)):
        return True
    return _is_called_rank(_last_name(node)) and not any(_is_something_else(value, node) for value in values)


def _given_for(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the names that a parameter is given, or an attribute is set to: `rank` of `self.gpu = rank`."""
    found: list[tuple[ast.expr | None, Scope]] = []
    if isinstance(node, ast.Name) and isinstance(scope.node, FUNCTIONS) and node.id in parameters(scope.node):
        names = parameters(scope.node)[1:] if is_method(scope) else parameters(scope.node)
        sites = analysis.callers(scope.node)
        found = [(argument_for(site.call, names, node.id), site.scope) for site in sites]
    elif isinstance(node, ast.Attribute):
        owners = {v.scope for v in analysis.evaluate(node.value, scope) if isinstance(v, Instance)}
        placed = [pair for owner in owners for pair in analysis.classes.attribute_bindings(owner, node.attr)]
        found = [(binding.value, where) for binding, where in placed if not binding.path]
    return [(given, where) for given, where in found if isinstance(given, (ast.Name, ast.Attribute))]


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
    return parameters(scope.node)[:1] == [node.id] and scope in analysis.spawned.functions


def mentions_rank(analysis: Analysis, node: ast.AST, scope: Scope, depth: int = 3) -> bool:
    """Return whether an expression differs between processes: the rank is part of it, or of what it is made of."""
    if depth == 0:
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.expr) and is_rank(analysis, part, scope):
            return True
        if isinstance(part, (ast.Name, ast.Attribute)):
            if side_of_test(analysis, part, scope):
                return True
            made = [(value, where) for value, where in _made_by(analysis, part, scope) if value is not node]
            if any(mentions_rank(analysis, value, where, depth - 1) for value, where in made):
                return True
    return False


def _made_by(analysis: Analysis, node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the texts and calls like os.path.join that a name, or an attribute, is assigned."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        placed = [(binding, found[0]) for binding in found[1]] if found else []
    else:
        owners = {v.scope for v in analysis.evaluate(node.value, scope) if isinstance(v, Instance)}
        placed = [pair for owner in owners for pair in analysis.classes.attribute_bindings(owner, node.attr)]
    values = [(binding.value, where) for binding, where in placed if binding.kind == "value" and not binding.path]
    return [(value, where) for value, where in values if value is not None and _is_text(analysis, value, where)]


def _is_text(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Call):
        is_format = isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        return is_format or bool(analysis.called(node, scope) & {"os.path.join", "str", "pathlib.Path"})
    return isinstance(node, (ast.JoinedStr, ast.BinOp))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
