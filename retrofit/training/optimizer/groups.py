"""Groups of parameters with their own learning rates: those that show the rate, and those that may hide one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import SCALED_LR

from .optimizers import Optimizer

RATE, ADDS_GROUP = "lr", "add_param_group"


@dataclass(frozen=True)
class AddedGroup:
    """What `optimizer.add_param_group(group)` is given, and the dicts that it can be.

    `hides_rate`: it may have a rate that none of them shows. `is_scaled`: the runtime scales it.
    """

    node: ast.expr
    scope: Scope
    optimizer: ast.expr
    dicts: frozenset[ast.AST]
    hides_rate: bool
    is_scaled: bool

    @property
    def is_written_there(self) -> bool:
        """Whether the dict is written in the call itself."""
        return self.node in self.dicts


def added_groups(analysis: Analysis) -> Iterator[AddedGroup]:
    """Yield the groups of parameters that are given to optimizers after these are made."""
    for call, scope in reached_calls(analysis):
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != ADDS_GROUP or _hands_on(function, scope):
            continue
        node = argument_for(call, ["param_group"], "param_group")
        if node is None:
            continue
        is_scaled = isinstance(node, ast.Call) and SCALED_LR in analysis.called(node, scope) and bool(node.args)
        group = node.args[0] if isinstance(node, ast.Call) and is_scaled else node
        found = list(origins(analysis, [Origin(group, scope)], _of_dict))
        dicts = frozenset(origin.node for origin in found if is_dict(origin.node))
        hides = not dicts or any(_hides_rate(analysis, origin) for origin in found)
        yield AddedGroup(node, scope, function.value, dicts, hides, is_scaled)


def _hands_on(function: ast.Attribute, scope: Scope) -> bool:
    """Return whether an optimizer, or a wrapper of one, gives itself or what it wraps a group that it was given."""
    root: ast.expr = function.value
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.value if isinstance(root, ast.Attribute) else root.func
    is_own = isinstance(root, ast.Name) and root.id in ("self", "super")
    is_plain = isinstance(function.value, (ast.Name, ast.Call))  # self, super()
    return is_own and (is_plain or getattr(scope.node, "name", "") == ADDS_GROUP)


def hides_rates(analysis: Analysis, optimizer: Optimizer) -> bool:
    """Return whether a group among the parameters that an optimizer is made with may have a rate that is not shown."""
    return any(_hides_rate(analysis, origin) for origin in groups_of(analysis, optimizer))


def groups_of(analysis: Analysis, optimizer: Optimizer) -> Iterator[Origin]:
    """Yield what the entries of the list of parameters that an optimizer is made with can be."""
    if optimizer.parameters is not None:
        yield from origins(analysis, [Origin(optimizer.parameters, optimizer.scope, (None,))], _of_list)


def is_dict(node: ast.AST) -> bool:
    """Return whether this is a dict that is written down: {...}, dict(...)."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
    return is_call or isinstance(node, ast.Dict)


def _of_dict(origin: Origin) -> Iterable[Origin] | None:
    return () if is_dict(origin.node) else None


def _of_list(origin: Origin) -> Iterable[Origin] | None:
    """Return what `groups + more` and `groups += more` put together."""
    node = origin.node
    if not origin.keys and is_dict(node):
        return ()
    if isinstance(node, ast.AugAssign):
        return [origin.to(node.value)]
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return [origin.to(node.left), origin.to(node.right)] if is_sum else None  # type: ignore[attr-defined]


def _hides_rate(analysis: Analysis, origin: Origin) -> bool:
    """Return whether a dict has other entries than those that are written, or a variable gets a rate later."""
    node, scope, keys = origin
    if isinstance(node, (ast.Name, ast.Attribute)) and not keys:
        stored = stored_in(analysis, node, scope)
        return any(entry.is_spread or entry.key in (RATE, None) for entry in stored)
    if isinstance(node, ast.Dict):
        spread = [value for key, value in zip(node.keys, node.values) if key is None]
        spread += [key for key in node.keys if key is not None and not isinstance(key, ast.Constant)]
    elif is_dict(node):
        spread = [*node.args, *(k.value for k in node.keywords if k.arg is None)]  # type: ignore[union-attr]
    else:
        return False
    return any(_may_have_rate(analysis, part, scope) for part in spread)


def _may_have_rate(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether the entries of another dict, which a group takes over, may have a rate among them."""
    for origin in origins(analysis, [Origin(node, scope)], _of_dict):
        if isinstance(origin.node, ast.Dict):
            if any(not isinstance(key, ast.Constant) or key.value == RATE for key in origin.node.keys):
                return True
        elif is_dict(origin.node) or not any(sources(analysis, origin)) or _hides_rate(analysis, origin):
            return True
    return False
