"""Lists, tuples and dicts whose length does not follow the batch: of the outputs of several layers, say."""

from __future__ import annotations

import ast
from collections.abc import Callable

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.memory import Memory
from retrofit.analysis.python_api import CONTAINER_NAMES
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.modules import LAYER_PACKAGE

from ..wrapped import functions_inside

CONTAINERS = (CONTAINER_NAMES - {"set"}) | {"zip", "reversed", "sorted"}


class Lists:
    """Answers whether the length of a list stays whatever the batch is.

    `is_within` tells of a node whether it is run once for each sample of a batch.
    """

    def __init__(self, analysis: Analysis, is_within: Callable[[ast.AST, Scope], bool]) -> None:
        self._analysis, self._is_within = analysis, is_within
        # A list that depends on itself, `outs = [f(o) for o in outs]`, is fixed where its other values are.
        self._known: Memory[bool] = Memory(True, too_deep=False)

    def is_fixed(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this number is the length of a list whose length stays: of the outputs of layers, say."""
        return self._known.once(("number", node, scope), lambda: self._is_fixed(node, scope))

    def has_fixed_length(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this is a list, tuple or dict that has as many entries whatever the batch is."""
        return self._known.once((node, scope), lambda: self._has_fixed_length(node, scope))

    def _is_fixed(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.Name):
            owner, bindings = live_bindings(node, scope)
            values = [b.value if b.kind == "value" and not b.path else None for b in bindings]
            return bool(values) and all(v is not None and self.is_fixed(v, owner) for v in values)
        is_length = isinstance(node, ast.Call) and last_name(node) == "len" and len(node.args) == 1
        return is_length and self.has_fixed_length(node.args[0], scope)  # type: ignore[attr-defined]

    def _has_fixed_length(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, (ast.Tuple, ast.List)):
            spread = [part.value for part in node.elts if isinstance(part, ast.Starred)]
            return bool(node.elts) and all(self.has_fixed_length(part, scope) for part in spread)
        if isinstance(node, ast.Dict):
            spread = [value for key, value in zip(node.keys, node.values) if key is None]
            return bool(node.keys) and all(self.has_fixed_length(part, scope) for part in spread)
        if isinstance(node, (ast.ListComp, ast.DictComp)):
            return all(self._is_of_layers(part.iter, scope) for part in node.generators)
        if isinstance(node, ast.Name):
            return self._is_fixed_name(node, scope)
        if not isinstance(node, ast.Call):
            return False
        functions = functions_inside(self._analysis, node, scope)
        if functions:
            returned = [(value, function.scope) for function in functions for value in returns_of(function.node)]
            return bool(returned) and all(self.has_fixed_length(*place) for place in returned)
        return last_name(node) in CONTAINERS and bool(node.args) and self.has_fixed_length(node.args[0], scope)

    def _is_fixed_name(self, node: ast.Name, scope: Scope) -> bool:
        owner, bindings = live_bindings(node, scope)
        if any(binding.kind == "parameter" for binding in bindings):
            return self._is_fixed_parameter(node.id, owner)
        return self._known.once((owner, *bindings), lambda: self._is_made_fixed(node.id, bindings, owner))

    def _is_made_fixed(self, name: str, bindings: list[Binding], owner: Scope) -> bool:
        made = [binding for binding in bindings if not isinstance(binding.node, ast.AugAssign)]
        values = [b.value for b in made if b.kind == "value" and not b.path and b.value is not None]
        if not values or len(values) < len(made):
            return False
        fills = [part for part in own_nodes(owner.node) if _puts_into(part, name)]
        if not all(self._is_fixed_fill(part, owner) for part in fills):
            return False
        return all(self.has_fixed_length(v, owner) or (bool(fills) and _is_empty(v)) for v in values)

    def _is_fixed_parameter(self, name: str, scope: Scope) -> bool:
        if not isinstance(scope.node, FUNCTIONS):
            return False
        given = arguments_for(self._analysis, name, scope)
        return bool(given) and all(v is not None and self.has_fixed_length(v, where) for v, where in given)

    def _is_fixed_fill(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a statement puts as much into a list whatever the batch is."""
        if self._is_within(node, scope):
            return False
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, ast.Add) and self.has_fixed_length(node.value, scope)
        if isinstance(node, ast.Call) and last_name(node) in ("extend", "update"):
            return all(self.has_fixed_length(part, scope) for part in node.args)
        return True

    def _is_of_layers(self, iterable: ast.expr, scope: Scope) -> bool:
        """Return whether a comprehension goes through layers, numbers or another list whose length stays."""
        if isinstance(iterable, ast.Call) and last_name(iterable) in ("range", "enumerate", "zip", "reversed"):
            return all(
                isinstance(part, ast.Constant) or self.is_fixed(part, scope) or self._is_of_layers(part, scope)
                for part in iterable.args
            )
        is_layers = any(name.startswith(LAYER_PACKAGE) for name in self._analysis.named(iterable, scope))
        return is_layers or self.has_fixed_length(iterable, scope)


def _is_empty(value: ast.expr) -> bool:
    """Return whether this makes an empty list, tuple or dict."""
    if isinstance(value, ast.Call):
        return not value.args and last_name(value) in CONTAINERS
    return isinstance(value, (ast.List, ast.Dict)) and not (value.keys if isinstance(value, ast.Dict) else value.elts)


def _puts_into(node: ast.AST, name: str) -> bool:
    """Return whether this is `name.append(x)`, `name += [x]` or `name[key] = x`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return node.func.attr in ("append", "extend", "update") and isinstance(owner, ast.Name) and owner.id == name
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    is_stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return is_stored and isinstance(node.value, ast.Name) and node.value.id == name  # type: ignore[attr-defined]
