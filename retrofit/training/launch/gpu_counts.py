"""Arithmetic with the number of GPUs: a batch, a learning rate, a number of workers that are for all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import arguments_for, bindings_of
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.launch import DEVICE_COUNT
from retrofit.training.torch_api.runtime import GPU_COUNT

_COUNT = re.compile(r"(n|num|nb|number_of|count)_?gpus?(_\w+)?|gpus?_?(num|number|count|n)|gpu_?nums", re.IGNORECASE)
_LIST = re.compile(r"(visible_)?(gpus?|devices?|cuda)(_?(ids?|idx|list|indices))?s?", re.IGNORECASE)
_PASSING = {"max", "min", "int", "float", "abs", "round"}
_OF_ALL = {"batch_size", "num_workers", "workers"}  # arguments that a number of GPUs is given for as it is
MOST_DEPTH = 8


def counted_gpus(analysis: Analysis, nodes: Iterable[tuple[ast.AST, Scope]]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the numbers of GPUs that something is multiplied with or divided by, or that are a size themselves."""
    for node, scope in nodes:
        for part in _factors(node):
            if is_gpu_count(analysis, part, scope):
                yield part, scope


def _factors(node: ast.AST) -> list[ast.expr]:
    operators = (ast.Mult, ast.Div, ast.FloorDiv)
    if isinstance(node, ast.BinOp) and isinstance(node.op, operators):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, operators):
        return [node.value]
    return [node.value] if isinstance(node, ast.keyword) and node.arg in _OF_ALL else []


def is_gpu_count(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression is a number of GPUs: counted, an option, or the length of a list of them."""
    if depth == 0:
        return False
    if isinstance(node, ast.IfExp):
        return any(is_gpu_count(analysis, part, scope, depth - 1) for part in (node.body, node.orelse))
    if isinstance(node, ast.BoolOp):
        return any(is_gpu_count(analysis, part, scope, depth - 1) for part in node.values)
    if isinstance(node, ast.Call):
        return _is_counting(analysis, node, scope, depth)
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return isinstance(key, str) and bool(_COUNT.fullmatch(key))
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    bindings = bindings_of(analysis, node, scope)
    for binding, where in bindings:
        values = [(part_of(binding), where)] if binding.kind == "value" else []
        if binding.kind == "parameter" and isinstance(where.node, FUNCTIONS):
            values = arguments_for(analysis, binding.name, where)
        if any(value is not None and is_gpu_count(analysis, value, at, depth - 1) for value, at in values):
            return True
    if GPU_COUNT in analysis.named(node, scope):
        return False
    return bool(_COUNT.fullmatch(last_name(node))) and not any(b.kind == "item" for b, _ in bindings)


def _is_counting(analysis: Analysis, node: ast.Call, scope: Scope, depth: int) -> bool:
    names = analysis.called(node, scope)
    if DEVICE_COUNT in names:
        return True
    if names & _PASSING:
        return any(is_gpu_count(analysis, part, scope, depth - 1) for part in node.args)
    if "len" in names and len(node.args) == 1:
        return _is_gpu_list(analysis, node.args[0], scope)
    functions = analysis.functions_called(node, scope)
    key = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    is_read = not functions and last_name(node.func) in ("get", "getenv") and isinstance(key, str)
    return is_read and bool(_COUNT.fullmatch(str(key)))


def _is_gpu_list(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a list of GPUs, by what it is called or what it is made of: args.gpus.split(",")."""
    if isinstance(node, (ast.Name, ast.Attribute)) and _LIST.fullmatch(last_name(node)):
        return True
    texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    is_split = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split"
    return is_split and ("CUDA_VISIBLE_DEVICES" in texts or _is_gpu_list(analysis, node.func.value, scope))  # type: ignore[attr-defined]
