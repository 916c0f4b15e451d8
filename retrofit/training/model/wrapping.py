"""Tell a model inside DistributedDataParallel from the same model without it.

Unlike `Analysis.evaluate` this goes by the order of statements: `model` is bare before `model = DDP(model)` and wrapped
after it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for, returns_of
from retrofit.analysis.flow.bindings import arguments_or_default
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import Binding, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.torch_api.modules import COMPILE, DDP, SAME_OBJECT

from ..distributed.distribution import Distribution, Site
from .unwrapping import takes_out


@dataclass(frozen=True)
class WrapState:
    """The call of DDP that an object is the result of, or, when it `is_bare`, the argument of."""

    site: Site
    is_bare: bool = False


class Wrapping:
    """Answers whether expressions are wrapped by torch's own DDP. The runtime's wrapper hides nothing."""

    def __init__(self, analysis: Analysis, distribution: Distribution) -> None:
        self._analysis = analysis
        self._memory: Memory[WrapState | None] = Memory(None)
        self.sites = [site for site in distribution.wraps if site.names & DDP]
        self._by_call = {site.call: site for site in self.sites}
        self._inside = {}
        for site in self.sites:
            model = argument_for(site.call, ["module"], "module")
            key = self.variable(model, site.scope) if model is not None else None
            if key is not None:
                self._inside[key] = site
        self._rebound = {site.call for site in self.sites if self._is_rebound(site)}

    def wrapped(self, node: ast.expr, scope: Scope) -> Site | None:
        """Return the call of DDP whose result `node` is; None when it is not, or cannot be told."""
        found = self._wrap_state(node, scope) if self.sites else None
        return found.site if found is not None and not found.is_bare else None

    def bare(self, node: ast.expr, scope: Scope) -> Site | None:
        """Return the call of DDP inside which `node` lies, when `node` is the model without the wrapper."""
        found = self._wrap_state(node, scope) if self.sites else None
        return found.site if found is not None and found.is_bare else None

    def _wrap_state(self, node: ast.expr | None, scope: Scope) -> WrapState | None:
        return self._memory.once((node, scope), lambda: self._find(node, scope))

    def _find(self, node: ast.expr | None, scope: Scope) -> WrapState | None:
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.Attribute) and node.attr == "module":
            outer = self._wrap_state(node.value, scope)
            if outer is not None and not outer.is_bare:
                return WrapState(outer.site, is_bare=True)
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            if found is not None:
                return self._of_name(node, scope, *found)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope)
        return None

    def _of_call(self, node: ast.Call, scope: Scope) -> WrapState | None:
        if node in self._by_call:
            return WrapState(self._by_call[node])
        if node.args and COMPILE in self._analysis.called(node, scope):
            return self._wrap_state(node.args[0], scope)
        functions = [v for v in self._analysis.evaluate(node.func, scope) if isinstance(v, LocalFunction)]
        if functions:
            parts = [(part, function.scope) for function in functions for part in returns_of(function.node)]
            return _common(self._wrap_state(part, where) for part, where in parts)
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
            return self._wrap_state(node.func.value, scope)
        return None

    def _of_name(self, node: ast.Name, scope: Scope, owner: Scope, bindings: list[Binding]) -> WrapState | None:
        placed = [(binding, owner) for binding in bindings]
        if owner is scope:
            placed = [(binding, owner) for binding in bindings if _line(binding) < node.lineno]
        found = self._of_bindings(placed, node, scope)
        return found or self._as_argument((owner, node.id), scope)

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> WrapState | None:
        key = self.variable(node, scope)
        if key is None:
            return None
        placed = self._analysis.classes.attribute_bindings(key[0], node.attr)
        before = [pair for pair in placed if pair[1] is not scope or _line(pair[0]) < node.lineno]
        return self._of_bindings(before, node, scope) or self._as_argument(key, scope)

    def _of_bindings(self, placed: list[tuple[Binding, Scope]], node: ast.expr, scope: Scope) -> WrapState | None:
        """Return what the last of these bindings gives; one under a condition counts when it wraps."""
        ordered = sorted(placed, key=lambda pair: _line(pair[0]), reverse=True)
        for binding, owner in ordered:
            is_elsewhere = owner is not scope and len(ordered) > 1  # in a method that may run later
            if self._unwraps(binding, owner) and (is_elsewhere or not _is_certain(owner, binding, node)):
                return None  # `net = model.module` in one branch, `net = model` in the other
        for binding, owner in ordered:
            if binding.kind == "parameter":
                return self._of_parameter(binding.name, owner)
            found = self._of_binding(binding, owner)
            if found is not None and (not found.is_bare or _is_certain(owner, binding, node)):
                return found
            if _is_certain(owner, binding, node):
                return None
        return None

    def _of_binding(self, binding: Binding, scope: Scope) -> WrapState | None:
        if binding.kind != "value" or binding.value is None:
            return None
        if not binding.path:
            return self._wrap_state(binding.value, scope)
        values = [(binding.value, scope)]
        if isinstance(binding.value, ast.Call):
            functions = self._analysis.functions_called(binding.value, scope)
            values = [(part, function.scope) for function in functions for part in returns_of(function.node)]
        parts = [
            (value.elts[binding.path[0]], where)
            for value, where in values
            if isinstance(value, ast.Tuple) and -len(value.elts) <= binding.path[0] < len(value.elts)
        ]
        return _common(self._wrap_state(part, where) for part, where in parts)

    def _of_parameter(self, name: str, scope: Scope) -> WrapState | None:
        """Return what every call gives for a parameter, None where calls differ."""
        given = arguments_or_default(self._analysis, name, scope)
        return _common(self._wrap_state(argument, where) for argument, where in given)

    def _unwraps(self, binding: Binding, scope: Scope) -> bool:
        return binding.kind == "value" and takes_out(self._analysis, binding.value, scope)

    def _as_argument(self, key: tuple[Scope, str], scope: Scope) -> WrapState | None:
        site = self._inside.get(key)
        if site is None or (site.call in self._rebound and site.scope is not scope):
            return None  # elsewhere `self.model` of `self.model = DDP(self.model)` can be either
        return WrapState(site, is_bare=True)

    def _is_rebound(self, site: Site) -> bool:
        """Return whether the wrapper takes the place of its model: `self.model = DDP(self.model)`."""
        statement = site.scope.source.statement(site.call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        model = argument_for(site.call, ["module"], "module")
        return model is not None and any(ast.unparse(target) == ast.unparse(model) for target in targets)

    def variable(self, node: ast.expr, scope: Scope) -> tuple[Scope, str] | None:
        """Return the scope that a name belongs to, or the class of `self.name`, with the name."""
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            return (found[0], node.id) if found is not None else None
        if isinstance(node, ast.Attribute):
            owners = [v for v in self._analysis.evaluate(node.value, scope) if isinstance(v, Instance)]
            return (owners[0].scope, node.attr) if len({owner.scope for owner in owners}) == 1 else None
        return None


def _line(binding: Binding) -> int:
    """Return the line after which a name is bound; the parts of a comprehension have none of their own."""
    if binding.kind == "value":
        return getattr(binding.node, "end_lineno", 0)
    return getattr(binding.node, "lineno", 0) or getattr(binding.value, "lineno", 0)


def _common(found: Iterable[WrapState | None]) -> WrapState | None:
    standings = set(found)
    return standings.pop() if len(standings) == 1 else None


def _is_certain(scope: Scope, binding: Binding, node: ast.AST) -> bool:
    """Return whether `node` is only run after this binding: no `if` around the binding alone."""
    around = set(scope.source.ancestors(node))
    branches = (ast.If, ast.Try, ast.For, ast.While)
    for outer in scope.source.ancestors(binding.node):
        if isinstance(outer, branches) and outer not in around and not is_main_guard(outer):
            return False
        if outer is scope.node:
            break
    return True
