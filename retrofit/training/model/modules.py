"""Objects that are modules: of a class of the project, or of torch.nn itself."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from retrofit.analysis.calls import is_own, last_name
from retrofit.analysis.flow.assignments import assignments_to
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.branches import exits_before, is_in_body
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.training.torch_api.modules import LAYER_PACKAGE, MODULE_CONTAINERS, MODULE_PACKAGES, WITH_PARAMETERS

MAKE_WEIGHTS = (*MODULE_PACKAGES[1:], *(LAYER_PACKAGE + name for name in (*WITH_PARAMETERS, "Parameter", "Lazy")))


def is_module(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is a torch.nn.Module of a class of the project."""
    return isinstance(value, Instance) and _is_class_of_modules(analysis, value.scope)


@answered_once
def _is_class_of_modules(analysis: Analysis, kind: Scope) -> bool:
    return any(name.startswith(MODULE_PACKAGES) or name.endswith(".Module") for name in analysis.classes.bases(kind))


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


def classes_inside(analysis: Analysis, kinds: Iterable[Scope]) -> list[Scope]:
    """Return some classes of modules, those that they are derived from, and the classes of their parts."""

    def step(kind: Scope) -> Iterator[Scope]:
        for base in analysis.classes.mro(kind):
            yield base
            for name in analysis.classes.attributes_of(base):
                parts = analysis.members(Instance(kind), name)
                yield from (part.scope for part in parts if isinstance(part, Instance) and is_module(analysis, part))

    return list(closure(kinds, step))


def is_part(analysis: Analysis, variable: Variable) -> bool:
    """Return whether a variable is an attribute of a module, or is taken out of one: `layer = self.layers[i]`."""
    if variable.is_attribute:
        return is_module(analysis, Instance(variable.scope))
    given = [
        (part, a.scope) for a in assignments_to(analysis, variable) if a.value is not None for part in walk(a.value)
    ]
    return any(isinstance(part, ast.Attribute) and classes_of(analysis, part.value, scope) for part, scope in given)


def has_no_weights(analysis: Analysis, kind: Scope) -> bool:
    """Return whether a class of modules surely has no weights, as one of a metric: all that it makes and runs is known.

    Layers as torch.nn.Softmax have none either.
    """
    functions = [child for owner in analysis.classes.mro(kind) for child in owner.children if child.is_function]
    calls = ((node, scope) for scope in functions for node in own_nodes(scope.node) if isinstance(node, ast.Call))
    return not any(_may_have_weights(analysis, call, scope) for call, scope in calls)


def _may_have_weights(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call in a method of a module can make, or run, something that has weights."""
    run = (value.builder for value in analysis.evaluate(call.func, scope) if isinstance(value, Result))
    names = analysis.called(call, scope) | set(run)
    if any(name.startswith(MODULE_PACKAGES) for name in names):
        return any(name.startswith(MAKE_WEIGHTS) for name in names)
    if names or analysis.functions_called(call, scope):
        return False
    function = call.func  # self.layer(x), layer(x), layer.forward(x); x.sum() and super().__init__() have none
    is_method = isinstance(function, ast.Attribute) and not is_own(function.value, scope)
    return not is_method or last_name(call) == "forward"


def is_layer(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is a module of the project, or something that torch.nn has made."""
    return is_module(analysis, value) or (isinstance(value, Result) and value.builder.startswith(LAYER_PACKAGE))


def layer_run(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr:
    """Return what a call runs: `self.encoder` of self.encoder.forward(x), too, which no hook of that layer sees.

    Of a layer that a loop takes out of a container the container: `self.heads` of `for head in self.heads: head(x)`.
    """
    function = call.func
    if isinstance(function, ast.Name):
        bindings = bindings_of(analysis, function, scope)
        taken = (_container_of(analysis, b, where) for b, where in bindings if _is_within(call, b, scope))
        return next((part for part in taken if part is not None), function)
    is_forward = isinstance(function, ast.Attribute) and function.attr == "forward"
    return function.value if is_forward and runs_layer(analysis, function.value, scope) else function  # type: ignore[attr-defined]


def runs_layer(analysis: Analysis, function: ast.expr, scope: Scope) -> bool:
    """Return whether a call of this runs a layer: self.layers[0](x) too."""
    while isinstance(function, ast.Subscript):
        function = function.value
    return any(is_layer(analysis, value) for value in analysis.evaluate(function, scope))


def _is_within(call: ast.Call, binding: Binding, scope: Scope) -> bool:
    """Return whether a call is in the loop, or in the comprehension, that binds a name."""
    loop = scope.source.parents[binding.node] if isinstance(binding.node, ast.comprehension) else binding.node
    return loop in scope.source.ancestors(call)


def _container_of(analysis: Analysis, binding: Binding, scope: Scope) -> ast.expr | None:
    """Return the container of layers that a loop, or a comprehension, goes through for a name."""
    if not isinstance(binding.node, (ast.For, ast.comprehension)):
        return None
    gone_through = binding.node.iter
    if last_name(gone_through) == "zip" and isinstance(gone_through, ast.Call) and binding.path:
        place = binding.path[0]
        is_known = isinstance(place, int) and place < len(gone_through.args)
        gone_through = gone_through.args[place] if is_known else gone_through
    parts = (part for part in walk(gone_through) if isinstance(part, ast.Attribute))
    return next((part for part in parts if analysis.named(part, scope) & MODULE_CONTAINERS), None)


def only_in_training(
    node: ast.AST, scope: Scope, is_mode: Callable[[ast.expr], bool] = lambda test: ast.unparse(test) == "self.training"
) -> bool:
    """Return whether a module comes to a node while it trains alone: under `if self.training`, or after its exit.

    `is_mode` says of a test whether it is true while the module trains, and false otherwise.
    """
    inner = node
    for outer in scope.source.ancestors(node):
        if (
            isinstance(outer, (ast.If, ast.IfExp))
            and inner is not outer.test
            and _implies_training(outer.test, is_in_body(outer, inner), is_mode)
        ):
            return True
        if any(_implies_training(test, False, is_mode) for test in exits_before(scope.source, inner)):
            return True
        if outer is scope.node:
            return False
        inner = outer
    return False


def _implies_training(test: ast.expr, value: bool, is_mode: Callable[[ast.expr], bool]) -> bool:
    """Return whether a module trains where a test has a value."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _implies_training(test.operand, not value, is_mode)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if value else ast.Or):
        return any(_implies_training(part, value, is_mode) for part in test.values)
    return value and is_mode(test)
