"""Lists, tuples and dicts that a loss goes through: of the outputs of several layers, say, and not of samples."""

from __future__ import annotations

import ast
from collections.abc import Callable

from retrofit.project.analysis import Analysis
from retrofit.project.calls import argument_for, is_method, last_name, returns_of
from retrofit.project.live import live_bindings
from retrofit.project.scopes import FUNCTIONS, Scope, own_nodes, parameters

from .wrapped import functions_inside

MAKING = {"list", "tuple", "dict", "OrderedDict", "defaultdict", "deque", "zip", "reversed", "sorted"}
MOST_DEPTH = 8


class Lists:
    """Answers what a list holds; `is_within` tells of a node whether it is run once for each sample of a batch."""

    def __init__(self, analysis: Analysis, is_within: Callable[[ast.AST, Scope], bool]) -> None:
        self._analysis, self._is_within = analysis, is_within

    def counts(self, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
        """Return whether this is the length of a list of something else than samples."""
        if isinstance(node, ast.Name) and depth:
            owner, bindings = live_bindings(node, scope)
            values = [b.value if b.kind == "value" and not b.path else None for b in bindings]
            return bool(values) and all(v is not None and self.counts(v, owner, depth - 1) for v in values)
        is_length = isinstance(node, ast.Call) and last_name(node) == "len" and len(node.args) == 1
        return is_length and self.is_of_others(node.args[0], scope)  # type: ignore[attr-defined]

    def is_of_others(self, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
        """Return whether this is a list, tuple or dict that does not have one entry for each sample."""
        if depth == 0:
            return False
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
            return bool(node.keys if isinstance(node, ast.Dict) else node.elts)
        if isinstance(node, (ast.ListComp, ast.DictComp)):
            return all(self._is_of_layers(part.iter, scope, depth - 1) for part in node.generators)
        if isinstance(node, ast.Name):
            return self._is_name_of_others(node, scope, depth - 1)
        if not isinstance(node, ast.Call):
            return False
        functions = functions_inside(self._analysis, node, scope)
        if functions:
            returned = [(value, function.scope) for function in functions for value in returns_of(function.node)]
            return bool(returned) and all(self.is_of_others(value, where, depth - 1) for value, where in returned)
        return last_name(node) in MAKING and bool(node.args) and self.is_of_others(node.args[0], scope, depth - 1)

    def _is_name_of_others(self, node: ast.Name, scope: Scope, depth: int) -> bool:
        owner, bindings = live_bindings(node, scope)
        if any(binding.kind == "parameter" for binding in bindings):
            return self._is_parameter_of_others(node.id, owner, depth)
        values = [b.value for b in bindings if b.kind == "value" and not b.path and b.value is not None]
        if not values or len(values) < len([b for b in bindings if not isinstance(b.node, ast.AugAssign)]):
            return False
        return all(self.is_of_others(v, owner, depth) or self._is_filled_by_others(v, node.id, owner) for v in values)

    def _is_parameter_of_others(self, name: str, scope: Scope, depth: int) -> bool:
        if not isinstance(scope.node, FUNCTIONS):
            return False
        names = parameters(scope.node)[1:] if is_method(scope) else parameters(scope.node)
        sites = self._analysis.callers(scope.node)
        given = [(argument_for(site.call, names, name), site.scope) for site in sites]
        return bool(given) and all(v is not None and self.is_of_others(v, where, depth) for v, where in given)

    def _is_filled_by_others(self, value: ast.expr, name: str, scope: Scope) -> bool:
        """Return whether an empty list is filled with something else than one entry for each sample."""
        is_empty = isinstance(value, (ast.List, ast.Dict)) or (isinstance(value, ast.Call) and not value.args)
        if not is_empty or (isinstance(value, ast.Call) and last_name(value) not in MAKING):
            return False
        places = [node for node in own_nodes(scope.node) if _puts_into(node, name)]
        return bool(places) and not any(self._is_within(place, scope) for place in places)

    def _is_of_layers(self, iterable: ast.expr, scope: Scope, depth: int) -> bool:
        """Return whether a comprehension goes through layers, numbers or another such list."""
        if isinstance(iterable, ast.Call) and last_name(iterable) in ("range", "enumerate", "zip", "reversed"):
            return all(
                isinstance(part, ast.Constant) or self.counts(part, scope) or self._is_of_layers(part, scope, depth)
                for part in iterable.args
            )
        is_layers = any(name.startswith("torch.nn.") for name in self._analysis.named(iterable, scope))
        return is_layers or self.is_of_others(iterable, scope, depth)


def _puts_into(node: ast.AST, name: str) -> bool:
    """Return whether this is `name.append(x)`, `name += [x]` or `name[key] = x`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return node.func.attr in ("append", "extend", "update") and isinstance(owner, ast.Name) and owner.id == name
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    is_stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return is_stored and isinstance(node.value, ast.Name) and node.value.id == name  # type: ignore[attr-defined]
