"""One process that drives several GPUs: torch's DataParallel, classes derived from it, and the function data_parallel.

https://pytorch.org/docs/stable/_modules/torch/nn/parallel/data_parallel.html
"""

from __future__ import annotations

import ast

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, LocalClass
from retrofit.training.torch_api.modules import DATA_PARALLEL, DATA_PARALLEL_FUNCTIONS, DATA_PARALLEL_PARAMETERS, DDP
from retrofit.training.torch_api.runtime import WITHOUT_DATA_PARALLEL


def module_run(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the module that a call runs on several GPUs, None where it is another call."""
    if analysis.called(call, scope).isdisjoint(DATA_PARALLEL_FUNCTIONS):
        return None
    return argument_for(call, DATA_PARALLEL_PARAMETERS, "module")


def is_device_argument(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a node is part of what only says to DataParallel which GPUs it takes: that goes with it."""
    inner = node
    for outer in scope.source.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.keyword):
            continue
        if isinstance(outer, ast.Call) and inner is not outer.func:
            given = [argument_for(outer, DATA_PARALLEL_PARAMETERS, name) for name in ("device_ids", "output_device")]
            if any(part is inner for part in given) and _is_parallel(analysis, outer, scope):
                return True
        inner = outer
    return False


def _is_parallel(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    if analysis.called(call, scope) & (DATA_PARALLEL_FUNCTIONS | {WITHOUT_DATA_PARALLEL}):
        return True
    return added_to_wrapper(analysis, call, scope) is not None


def run_plainly(analysis: Analysis, call: ast.Call, scope: Scope) -> list[Edit]:
    """Return edits that make `data_parallel(net, (x, y), ids)` into `net(x, y)`; none where its inputs are unclear."""
    module, inputs = (argument_for(call, DATA_PARALLEL_PARAMETERS, name) for name in DATA_PARALLEL_PARAMETERS[:2])
    options = argument_for(call, DATA_PARALLEL_PARAMETERS, "module_kwargs")
    if module is None or inputs is None or not isinstance(module, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return []
    source = scope.source
    (start, end), (module_start, module_end) = source.span(call), source.span(module)
    first, last = source.span(inputs)
    if first < module_end:
        return []  # given by keywords in another order
    opening = "("
    if isinstance(inputs, ast.Tuple):
        first, last = first + 1, last - 1
    else:
        kinds = _are_tuples(analysis, inputs, scope)
        if len(kinds) > 1:
            return []
        opening = "(*" if kinds == {True} else opening
    given = "" if options is None or isinstance(options, ast.Constant) else f"**{source.segment(options)}"
    separator = ", " if given and source.text[first:last].rstrip()[-1:] not in ("", ",") else ""
    return [
        Edit(source, start, module_start, ""),
        Edit(source, module_end, first, opening),
        Edit(source, last, end, f"{separator}{given})"),
    ]


def _are_tuples(analysis: Analysis, inputs: ast.expr, scope: Scope) -> set[bool]:
    """Return whether what is run is a tuple, which is then taken apart: both where it may be either."""
    if isinstance(inputs, ast.Name) and isinstance(scope.node, FUNCTIONS):
        star = scope.node.args.vararg
        if star is not None and star.arg == inputs.id:
            return {True}
    values = analysis.evaluate(inputs, scope)
    return {isinstance(value, Display) and isinstance(value.node, ast.Tuple) for value in values}


def added_to_wrapper(analysis: Analysis, call: ast.Call, scope: Scope) -> list[str] | None:
    """Return what the class of a new object has that DataParallel has not; None where it is not a DataParallel.

    To look up attributes in the module as well adds nothing: the wrapper of the runtime does so.
    """
    if analysis.called(call, scope) & DATA_PARALLEL:
        return []
    classes = [value.scope for value in analysis.evaluate(call.func, scope) if isinstance(value, LocalClass)]
    classes = [known for known in classes if analysis.classes.bases(known) & DATA_PARALLEL]
    if not classes:
        return None
    scopes = [inner for known in classes for inner in analysis.classes.mro(known)]
    return sorted({name for inner in scopes for name in inner.bindings if not _only_looks_up(inner, name)})


def _only_looks_up(owner: Scope, name: str) -> bool:
    """Return whether this is a `__getattr__`, or an `__init__`, that only asks the parent or the module."""
    parts = [part for binding in owner.bindings[name] for part in walk(binding.node)]
    functions = [part.func for part in parts if isinstance(part, ast.Call)]
    asked = {function.attr if isinstance(function, ast.Attribute) else ast.unparse(function) for function in functions}
    is_set = any(isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) for part in parts)
    return name in ("__getattr__", "__init__") and asked <= {"super", "getattr", "hasattr", name} and not is_set


def asked_for(analysis: Analysis, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return `model` of isinstance(model, DataParallel) and type(model) is DataParallel."""
    if isinstance(node, ast.Call) and len(node.args) == 2 and "isinstance" in analysis.called(node, scope):
        return node.args[0] if _is_wrapper(analysis, node.args[1], scope) else None
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.Eq, ast.In)) and len(node.ops) == 1:
        left = node.left
        if isinstance(left, ast.Call) and len(left.args) == 1 and "type" in analysis.called(left, scope):
            return left.args[0] if _is_wrapper(analysis, node.comparators[0], scope) else None
    return None


def _is_wrapper(analysis: Analysis, kind: ast.expr, scope: Scope) -> bool:
    """Return whether a class, or a tuple of classes, is that of DataParallel and not that of DDP as well."""
    kinds = [(kind, scope)]
    for value in analysis.evaluate(kind, scope):
        if isinstance(value, Display) and isinstance(value.node, (ast.Tuple, ast.List)):
            kinds += [(part, value.scope) for part in value.node.elts]
    names = set().union(*(analysis.named(part, where) for part, where in kinds))
    return bool(names & DATA_PARALLEL) and not names & DDP
