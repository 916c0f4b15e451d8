"""Objects that are modules: of a class of the project, or of torch.nn itself."""

from __future__ import annotations

import ast

from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.training.torch_api.modules import LAYER_PACKAGE, MODULE_PACKAGES


def is_module(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is a torch.nn.Module of a class of the project."""
    return isinstance(value, Instance) and any(
        name.startswith(MODULE_PACKAGES) or name.endswith(".Module") for name in analysis.classes.bases(value.scope)
    )


def is_model(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is a module of the project, or a layer or a model of torch's packages, but no loss."""
    if is_module(analysis, value):
        return True
    builder = value.builder if isinstance(value, Result) else ""
    return builder.startswith(MODULE_PACKAGES) and not builder.endswith("Loss")


def classes_of(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Scope]:
    """Return the project's classes of modules that an expression can be an object of."""
    values = analysis.evaluate(node, scope)
    return [value.scope for value in values if isinstance(value, Instance) and is_module(analysis, value)]


def is_layer(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is a module of the project, or something that torch.nn has made."""
    return is_module(analysis, value) or (isinstance(value, Result) and value.builder.startswith(LAYER_PACKAGE))


def layer_run(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr:
    """Return what a call runs: `self.encoder` of self.encoder.forward(x), too, which no hook of that layer sees."""
    function = call.func
    is_forward = isinstance(function, ast.Attribute) and function.attr == "forward"
    return function.value if is_forward and runs_layer(analysis, function.value, scope) else function  # type: ignore[attr-defined]


def runs_layer(analysis: Analysis, function: ast.expr, scope: Scope) -> bool:
    """Return whether a call of this runs a layer: self.layers[0](x) too."""
    while isinstance(function, ast.Subscript):
        function = function.value
    return any(is_layer(analysis, value) for value in analysis.evaluate(function, scope))
