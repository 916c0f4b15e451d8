"""Tensors that an optimizer gets by themselves, next to the parameters of models: `[*model.parameters(), scale]`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.operands import is_loop_variable
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result, Value
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.tensors import CONVERTS, DRAWN, DRAWN_LIKE, FILLED, FILLED_LIKE, TENSOR_CLASSES

from ..optimizer.optimizers import Optimizer

TENSORS = TENSOR_CLASSES | FILLED | FILLED_LIKE | DRAWN | DRAWN_LIKE | CONVERTS | {"Parameter"}
JOINING = {"list", "tuple", "itertools.chain", "filter", "iter"}
ENTRY = (None,)  # any entry of a list


def bare_parameters(analysis: Analysis, optimizers: list[Optimizer]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the expressions of tensors that belong to no model, where they are put among an optimizer's parameters."""
    starts = [Origin(o.parameters, o.scope, ENTRY) for o in optimizers if o.parameters is not None]
    for node, scope in reached_nodes(analysis):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_param_group":
            group = argument_for(node, ["param_group"], "param_group")
            starts += [Origin(group, scope)] if group is not None else []
    found = [o for o in origins(analysis, starts, partial(_parts, analysis)) if _is_variable_of_tensor(analysis, o)]
    yield from dict.fromkeys((o.node, o.scope) for o in found if not _is_of_module(analysis, o))  # type: ignore[misc]


def _parts(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    """Return what a list or a group is put together from; None for what has it from elsewhere."""
    node = origin.node
    if isinstance(node, ast.AugAssign):
        return [origin.to(node.value)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        given = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "params"]
        return [origin.to(part, keys=ENTRY) for part in given]
    if isinstance(node, ast.Call):
        return _parts_of_call(analysis.called(node, origin.scope), node, origin)
    return () if _is_variable_of_tensor(analysis, origin) else None


def _parts_of_call(names: set[str], node: ast.Call, origin: Origin) -> list[Origin] | None:
    """Return what a call joins, or dict(params=...) holds; None for another call."""
    if names & JOINING:
        return [origin.to(part.value if isinstance(part, ast.Starred) else part) for part in node.args]
    given = [keyword.value for keyword in node.keywords if keyword.arg == "params"]
    return [origin.to(part, keys=ENTRY) for part in given] if "dict" in names else None


def _is_variable_of_tensor(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a name, an attribute or an entry holds a tensor; the variable of a loop only passes it on."""
    node, scope = origin.node, origin.scope
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    is_tensor = any(_is_tensor(value) for value in analysis.evaluate(node, scope))
    return is_tensor and not is_loop_variable(analysis, node, scope)


def _is_of_module(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a tensor is an attribute of a module, whose wrapper averages its gradient."""
    if not isinstance(origin.node, ast.Attribute):
        return False
    return any(is_module(analysis, value) for value in analysis.evaluate(origin.node.value, origin.scope))


def _is_tensor(value: Value) -> bool:
    if not isinstance(value, Result) or value.receiver is not None:
        return False
    package, _, name = value.builder.rpartition(".")
    return package.partition(".")[0] == "torch" and name in TENSORS
