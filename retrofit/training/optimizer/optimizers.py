"""The optimizers of a project, and the expressions whose parameters they are given."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalClass, LocalFunction, Result
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.launch import INSTANTIATES
from retrofit.training.torch_api.modules import CHILDREN, LAYER_PACKAGE, MODULES, PARAMETERS

from .optimizer_classes import Builder, builders_in, positions_of

_PARAMETERS = PARAMETERS | CHILDREN | MODULES


@dataclass(frozen=True)
class Optimizer:
    """A call that makes an optimizer, and the argument that holds its parameters.

    `rate`: what the call itself is given as learning rate; it may have another one, in `**options` or by default.
    """

    call: ast.Call
    scope: Scope
    builders: tuple[Builder, ...]
    parameters: ast.expr | None
    rate: ast.expr | None

    @property
    def is_alone(self) -> bool:
        """Whether the call makes optimizers only, as far as is known: it is not a general factory."""
        return all(builder.name for builder in self.builders)


def find_optimizers(analysis: Analysis) -> list[Optimizer]:
    """Return the optimizers that the running code makes from torch.optim, in source order."""
    found = []
    for node, scope in reached_calls(analysis):
        builders = builders_in(analysis, node, scope)
        classes = [builder for builder in builders if builder.name]
        configured = _given_to_configured(analysis, node, scope)
        if configured is not None:
            found.append(Optimizer(node, scope, (Builder("instantiate"),), configured, None))
        elif classes:
            given = argument_for(node, ["params"], "params") or _all_given(node)
            found.append(Optimizer(node, scope, tuple(builders), given, _rate(analysis, node, classes)))
    return found


def _all_given(call: ast.Call) -> ast.expr | None:
    """Return the `*args` that a general factory hands on: getattr(module, name)(*args, **options)."""
    return call.args[0] if call.args and isinstance(call.args[0], ast.Starred) else None


def _given_to_configured(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the parameters that are given to what a configuration names: `instantiate(cfg.optimizer, params=...)`."""
    if not analysis.called(call, scope) & INSTANTIATES:
        return None
    named = argument_for(call, [], "params")
    return named if named is not None else next((part for part in call.args[1:] if _is_parameters_call(part)), None)


def parameter_owners(analysis: Analysis, optimizer: Optimizer) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions whose parameters an optimizer is given: `model` of `SGD(model.parameters())`.

    Lists of groups, filters, chains and functions of the user are looked into. Of a part of a model, `model.conv1`,
    both the part and the model are returned.
    """
    return [] if optimizer.parameters is None else owners_of(analysis, optimizer.parameters, optimizer.scope)


def owners_of(analysis: Analysis, parameters: ast.expr, where: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions whose parameters an expression gives."""
    is_all = isinstance(parameters, ast.Starred)
    start = Origin(parameters.value, where, (0,)) if is_all else Origin(parameters, where)  # type: ignore[attr-defined]
    parts = origins(analysis, [start], partial(_parts, analysis))
    owners = (owner for part in parts for owner in _owners(analysis, part.node, part.scope))
    return list(dict.fromkeys((whole, scope) for node, scope in owners for whole in _wholes(node)))


def _rate(analysis: Analysis, call: ast.Call, builders: list[Builder]) -> ast.expr | None:
    """Return what a call is given as learning rate."""
    given = (argument_for(call, positions_of(analysis, builder), "lr") for builder in builders)
    return next((rate for rate in given if rate is not None), None)


def _parts(analysis: Analysis, origin: Origin) -> Iterable[Origin]:
    """Return what a list of parameters is made of; what a model is constructed from is not part of it."""
    function = origin.node.func if isinstance(origin.node, ast.Call) else None
    is_construction = any(isinstance(v, LocalClass) for v in analysis.evaluate(function, origin.scope))
    return () if is_construction else inputs(analysis, origin, stored=True)


def _owners(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the expressions whose parameters an expression gives, itself or in functions of the project."""
    outer = scope.source.parents.get(node)
    is_method = isinstance(outer, ast.Call) and outer.func is node
    if isinstance(node, ast.Attribute) and not is_method and _is_layer(analysis, node.value, scope):
        yield node.value, scope  # self.head.weight
    if not isinstance(node, ast.Call):
        return
    if _is_parameters_call(node):
        yield node.func.value, scope  # type: ignore[attr-defined]
    for function in analysis.evaluate(node.func, scope):
        given = _given_in(function) if isinstance(function, LocalFunction) else []
        if given and function.receiver is not None and isinstance(node.func, ast.Attribute):  # type: ignore[union-attr]
            yield node.func.value, scope  # model.get_params() yields its own
        elif given:
            yield from given


def _given_in(function: LocalFunction) -> list[tuple[ast.expr, Scope]]:
    """Return the expressions whose parameters are listed in a function of the project."""
    calls = [node for node in own_nodes(function.node) if _is_parameters_call(node)]
    return [(call.func.value, function.scope) for call in calls]  # type: ignore[attr-defined]


def _is_layer(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    values = () if getattr(node, "id", "") == "self" else analysis.evaluate(node, scope)
    builders = [value.builder for value in values if isinstance(value, Result)]
    is_of_torch = any(
        builder.startswith(LAYER_PACKAGE) and builder.rpartition(".")[2][:1].isupper() for builder in builders
    )
    return is_of_torch or any(is_module(analysis, value) for value in values)


def _wholes(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression and the objects that it is a part of: self.net.conv1, self.net."""
    yield node
    is_own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not is_own:
        yield from _wholes(node.value)


def _is_parameters_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARAMETERS
