"""Hooks on parameters: functions that get a gradient before DDP has made the mean over the ranks of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.optimizer.parameter_gradients import are_parameters
from retrofit.training.torch_api.modules import HOOKS_GRADIENT
from retrofit.training.torch_api.tensors import DETACHES, RESHAPES, SAME_ENTRIES

PRODUCTS = frozenset({"mul", "mul_", "div", "div_", "multiply", "divide"})
LINEAR = PRODUCTS | SAME_ENTRIES | RESHAPES | DETACHES | {"neg", "neg_", "zero_", "zeros_like", "clone", "contiguous"}


def gradient_hooks(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that hook a function on the gradient of a parameter, of which more than a multiple is made.

    A multiple, and a gradient that is zero at fixed places, has the mean of the ranks as its own mean.
    """
    for call, scope in reached_calls(analysis):
        is_hook = isinstance(call.func, ast.Attribute) and call.func.attr == HOOKS_GRADIENT and len(call.args) == 1
        if not is_hook or _gives_multiple(analysis, call.args[0], scope):
            continue
        if are_parameters(analysis, call.func.value, scope):  # type: ignore[attr-defined]
            yield call, scope


def _gives_multiple(analysis: Analysis, hook: ast.expr, scope: Scope) -> bool:
    values = analysis.evaluate(hook, scope)
    return bool(values) and all(isinstance(value, LocalFunction) and _is_linear(value) for value in values)


def _is_linear(function: LocalFunction) -> bool:
    """Return whether a function returns its last parameter that has no default times something."""
    given, body = function.node.args, function.node.body
    required = given.args[: len(given.args) - len(given.defaults)]
    if not required or given.vararg:
        return False
    names = {required[-1].arg}
    if isinstance(function.node, ast.Lambda):
        return _is_multiple(body, names)  # type: ignore[arg-type]
    if not all(_keeps_multiples(node, names) for node in own_nodes(function.node)):
        return False
    returned = list(returns_of(function.node))
    return bool(returned) and all(_is_multiple(value, names) for value in returned)


def _keeps_multiples(node: ast.AST, names: set[str]) -> bool:
    """Return whether a statement leaves multiples of the gradient in `names`, to which it may add, and reads no more.

    What else is computed from the gradient, as its norm, and decided by it, makes something else of it.
    """
    if isinstance(node, (ast.If, ast.While)):
        return not _has(node.test, names)
    if isinstance(node, ast.Assign):
        (target, *others) = node.targets
        if isinstance(target, ast.Name) and not others and _is_multiple(node.value, names):
            names.add(target.id)
            return True
        if any(_has(each, names) for each in node.targets):  # gradient[:10] = 0
            is_part = isinstance(target, ast.Subscript) and not others
            return is_part and isinstance(node.value, ast.Constant) and node.value.value == 0
        return not _has(node.value, names)
    if isinstance(node, ast.AugAssign):
        if not _has(node.target, names):
            return not _has(node.value, names)
        return isinstance(node.op, (ast.Mult, ast.Div)) and not _has(node.value, names)
    if isinstance(node, ast.Expr):
        return not _has(node.value, names) or _is_multiple(node.value, names)
    return True


def _is_multiple(node: ast.expr, names: Collection[str]) -> bool:
    """Return whether an expression is a gradient, in `names`, times something else, entry by entry."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_multiple(node.operand, names)
    if isinstance(node, ast.Subscript):
        return _is_multiple(node.value, names) and not _has(node.slice, names)
    if isinstance(node, ast.BinOp):
        left, right = (_is_multiple(part, names) for part in (node.left, node.right))
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return left and right
        is_other = right and isinstance(node.op, ast.Mult) and not _has(node.left, names)
        is_first = left and isinstance(node.op, (ast.Mult, ast.Div)) and not _has(node.right, names)
        return is_first or is_other
    if not isinstance(node, ast.Call) or last_name(node) not in LINEAR or not isinstance(node.func, ast.Attribute):
        return False
    parts = [node.func.value, *node.args] if _has(node.func.value, names) else node.args
    others = [*parts[1:], *(keyword.value for keyword in node.keywords)]
    return bool(parts) and _is_multiple(parts[0], names) and not any(_has(part, names) for part in others)


def _has(node: ast.AST, names: Collection[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in walk(node))
