"""The classes of a project: what they are derived from, their methods, and what is assigned to their attributes."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from ..calls import attribute_assignments, is_classmethod
from ..scopes import FUNCTIONS, Binding, Scope, own_nodes, parameters
from .decorators import stored_in_attribute
from .kinds import Instance, LocalClass, LocalFunction, Values

if TYPE_CHECKING:
    from .inference import Analysis


class Classes:
    """Answers questions about classes, given by the scopes that they open."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._mros: dict[Scope, list[Scope]] = {}
        self._derived: dict[Scope, list[Scope]] = {}
        self._methods: dict[tuple[Scope, str], LocalFunction | None] = {}
        self._bindings: dict[tuple[Scope, str], list[tuple[Binding, Scope]]] = {}
        self._attributes: dict[Scope, dict[str, list[tuple[Binding, Scope]]]] = {}
        self._entries: dict[Scope, dict[str, list[tuple[ast.expr, ast.expr]]]] = {}

    def index(self) -> None:
        """Find what each class is derived from; to be called when no value is being worked out."""
        self._mros.clear()
        self._forget()
        scopes = [scope for scope in self._analysis.scopes() if isinstance(scope.node, ast.ClassDef)]
        self._mros.update({scope: self.mro(scope) for scope in scopes})
        self._derived = defaultdict(list)
        for scope in scopes:
            for base in self._mros[scope][1:]:
                self._derived[base].append(scope)
        self._forget()  # what was found meanwhile

    def _forget(self) -> None:
        self._bindings.clear()
        self._methods.clear()

    def receivers(self, method: Scope) -> Values:
        """Return what the first parameter of a method is: an object, or a class."""
        assert method.parent is not None
        if getattr(method.node, "name", "") == "__init_subclass__":
            return frozenset(map(LocalClass, self.derived(method.parent)))
        is_of_class = is_classmethod(method.node)  # type: ignore[arg-type]
        return frozenset([LocalClass(method.parent) if is_of_class else Instance(method.parent)])

    def bases(self, class_scope: Scope) -> set[str]:
        """Return the full names of the classes outside the project that a class is derived from."""
        found: set[str] = set()
        for scope in self.mro(class_scope):
            assert isinstance(scope.node, ast.ClassDef)
            for base in scope.node.bases:
                plain = base.value if isinstance(base, ast.Subscript) else base  # of dict[str, float]
                found |= self._analysis.named(plain, scope.parent or scope)
        return found

    def mro(self, class_scope: Scope) -> list[Scope]:
        """Return a class and the classes of the project that it is derived from, nearest first."""
        if class_scope in self._mros:
            return self._mros[class_scope]
        found, waiting = [], [class_scope]
        while waiting:
            scope = waiting.pop(0)
            if scope in found or not isinstance(scope.node, ast.ClassDef):
                continue
            found.append(scope)
            for base in scope.node.bases:
                for value in self._analysis.evaluate(base, scope.parent or scope):
                    if isinstance(value, LocalClass):
                        waiting.append(value.scope)
        return found

    def method(self, class_scope: Scope, name: str) -> LocalFunction | None:
        question = class_scope, name
        if question not in self._methods:
            found = (self.own_method(scope, name) for scope in self.mro(class_scope))
            first = next((method for method in found if method is not None), None)
            self._methods[question] = first and LocalFunction(first.node, first.scope, class_scope)
        return self._methods[question]

    def own_method(self, class_scope: Scope, name: str) -> LocalFunction | None:
        for binding in class_scope.bindings.get(name, []):
            if binding.kind == "definition" and isinstance(binding.node, FUNCTIONS):
                return LocalFunction(binding.node, self._analysis.scope_of_node[binding.node], class_scope)
        return None

    def attribute_bindings(self, class_scope: Scope, name: str) -> list[tuple[Binding, Scope]]:
        """Return what gives `self.name` its values: assignments in methods and in the class, with their scopes."""
        if (class_scope, name) not in self._bindings:
            pairs = (pair for kind in self.setters(class_scope, name) for pair in self._placed(kind, name))
            self._bindings[class_scope, name] = list(dict.fromkeys(pairs))
        return self._bindings[class_scope, name]

    def setters(self, class_scope: Scope, name: str) -> list[Scope]:
        """Return the class itself, or the derived ones that give `self.name` a value where it has but None, or nothing.

        A loop of a base class runs `self.model(x)`, and each class that is derived from it makes a model of its own.
        """
        kinds = [class_scope, *self.derived(class_scope)] if self.derived(class_scope) else []
        own = [kind for kind in kinds if not all(_is_none(binding) for binding, _ in self._placed(kind, name))]
        return [class_scope] if not own or class_scope in own else own

    def _placed(self, class_scope: Scope, name: str) -> list[tuple[Binding, Scope]]:
        return [pair for scope in self.mro(class_scope) for pair in self._own_bindings(scope, name)]

    def derived_bindings(self, class_scope: Scope, name: str) -> list[tuple[Binding, Scope]]:
        """Return what else gives `self.name` its values in objects of the classes that are derived from a class."""
        return [pair for scope in self.derived(class_scope) for pair in self._own_bindings(scope, name)]

    def _own_bindings(self, class_scope: Scope, name: str) -> list[tuple[Binding, Scope]]:
        values = [binding for binding in class_scope.bindings.get(name, []) if binding.kind == "value"]
        return [*self.attributes_of(class_scope).get(name, []), *((binding, class_scope) for binding in values)]

    def attributes_of(self, class_scope: Scope) -> dict[str, list[tuple[Binding, Scope]]]:
        if class_scope not in self._attributes:
            found: dict[str, list[tuple[Binding, Scope]]] = defaultdict(list)
            for scope in class_scope.walk():
                if scope.is_function and scope.enclosing_class() is class_scope:
                    for binding in attribute_assignments(scope, self._analysis.library.setting_methods):
                        found[binding.name].append((binding, scope))
            self._attributes[class_scope] = found
        return self._attributes[class_scope]

    def entries_of(self, class_scope: Scope, name: str) -> list[tuple[ast.expr, ast.expr]]:
        """Return the keys and values that `self.name[key] = value` stores in the methods of a class."""
        if class_scope not in self._entries:
            found: dict[str, list[tuple[ast.expr, ast.expr]]] = defaultdict(list)
            for method in [scope for scope in class_scope.children if scope.is_function]:
                first = parameters(method.node)[:1]  # type: ignore[arg-type]
                receivers = {*first, getattr(class_scope.node, "name", "")}
                for scope in method.walk():
                    for attribute, key, value in stored_in_attribute(list(own_nodes(scope.node)), receivers):
                        found[attribute].append((key, value))
            self._entries[class_scope] = found
        return self._entries[class_scope].get(name, [])

    def derived(self, class_scope: Scope) -> list[Scope]:
        """Return the classes of the project that are derived from a class, in source order."""
        return self._derived.get(class_scope, [])


def _is_none(binding: Binding) -> bool:
    return binding.kind == "value" and isinstance(binding.value, ast.Constant) and binding.value.value is None
