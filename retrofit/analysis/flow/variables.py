"""The variable that an object is assigned to: where a rewrite can give it another value for every use of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..calls import default_of, given_parameters, returns_of
from ..memory import Memory
from ..scopes import FUNCTIONS, Binding, Scope, outside_comprehensions, own_nodes
from ..values.inference import Analysis
from ..values.kinds import Display, Instance, LocalFunction, LocalModule
from .reachability import known_scopes
from .reaching_definitions import live_bindings
from .sources import Origin, origins


@dataclass(frozen=True)
class Variable:
    """A variable that holds an object: a name of `scope`, or an attribute of the objects of the class `scope`.

    With a `key` it is an entry of the dict in that variable.
    """

    scope: Scope
    name: str
    is_attribute: bool = False
    key: str | None = None

    def __str__(self) -> str:
        name = f"self.{self.name}" if self.is_attribute else self.name
        return name if self.key is None else f"{name}[{self.key!r}]"


def variables_of(
    analysis: Analysis, node: ast.expr, scope: Scope, leave_out: Collection[ast.AST] = frozenset()
) -> set[Variable]:
    """Return the variables that the object which `node` names is assigned to.

    Parameters are followed to the calls that give them their values, `iter(x)`, `x.to(device)` and `x.module` to `x`.
    Empty for what has no variable: the result of a call, an element of a list. Calls and values in `leave_out` do not
    count.
    """
    return set(_Trace(analysis, leave_out).of(node, scope))


def entry_variables(analysis: Analysis, container: ast.expr, key: str, scope: Scope) -> set[Variable]:
    """Return the variables that hold the entry `key` of the dict that `container` is."""
    return _Trace(analysis).entry(container, key, scope)


class _Trace:
    def __init__(self, analysis: Analysis, leave_out: Collection[ast.AST] = frozenset()) -> None:
        self.analysis = analysis
        self.leave_out = leave_out
        known = Memory(set()) if leave_out else analysis.fact("variables", lambda: Memory(set()))
        self._once: Callable[[object, Callable[[], set[Variable]]], set[Variable]] = known.once

    def of(self, node: ast.expr, scope: Scope) -> set[Variable]:
        return self._once((node, scope), lambda: self._of(node, scope))

    def _of(self, node: ast.expr, scope: Scope) -> set[Variable]:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope, node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.IfExp):
            parts = [part for part in (node.body, node.orelse) if part not in self.leave_out]
            return set().union(*(self.of(part, scope) for part in parts))
        if isinstance(node, ast.Subscript):
            return self._of_subscript(node, scope)
        return set()

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> set[Variable]:
        """Follow `kwargs["model"]` to the calls that give model=, and `loaders["train"]` to what was put in there."""
        found: set[Variable] = set()
        for value, site_scope in self.analysis.containers.given_as_keyword(node, scope):
            found |= self.of(value, site_scope)
        if found or not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, str):
            return found
        return self.entry(node.value, node.slice.value, scope)

    def entry(self, container: ast.expr, key: str, scope: Scope) -> set[Variable]:
        """Return the variables of the entry `key` of a dict: the one that was put in there, or the entry."""
        found: set[Variable] = set()
        for value in self.analysis.evaluate(container, scope):
            if isinstance(value, Display) and isinstance(value.node, ast.Dict):
                for name, part in zip(value.node.keys, value.node.values):
                    if isinstance(name, ast.Constant) and name.value == key:
                        found |= self.of(part, value.scope)
        if found:
            return found
        return {
            Variable(variable.scope, variable.name, variable.is_attribute, key)
            for variable in self.of(container, scope)
        }

    def _of_name(self, name: str, scope: Scope, read: ast.Name | None = None) -> set[Variable]:
        """Return the variables of a name: where it only names others, of those that it can name where it is `read`."""
        found = scope.find(name)
        if found is None:
            return set()
        owner, bindings = found
        if any(binding.kind == "parameter" for binding in bindings):
            return self._of_parameter(name, owner)
        imported = [binding for binding in bindings if binding.kind == "import"]
        if imported and len(imported) == len(bindings):
            return self._of_import(imported[0], owner)
        # The rest is of one that shadows the module it comes from: `import model`, then `model = model.Net()`.
        bindings = [binding for binding in bindings if binding.kind != "import"]
        bindings = outside_comprehensions(bindings) or bindings
        if not any(binding.kind in ("value", "enter") for binding in bindings):
            return set()
        held = self._held_by_other_names([(binding, binding.elsewhere or owner) for binding in bindings])
        if held and read is not None and len(bindings) > 1:
            live = [binding for binding in live_bindings(read, scope)[1] if binding in bindings]
            held = self._held_by_other_names([(binding, binding.elsewhere or owner) for binding in live]) or held
        return held or {Variable(owner, name)}

    def _held_by_other_names(self, bindings: list[tuple[Binding, Scope]]) -> set[Variable]:
        """Return what a variable is only another name for: `self.model = model`, `it = iter(loader)`."""
        found: set[Variable] = set()
        for binding, scope in bindings:
            value = part_of(binding)
            if binding.kind == "value" and isinstance(value, ast.Constant):
                continue  # None, until there is something to hold
            if binding.value in self.leave_out:
                continue
            unpacked = self._unpacked(binding, scope)
            if unpacked:
                found |= unpacked
                continue
            if binding.kind != "value" or not (is_plain(value) or self._hands_on(value, scope)):
                return set()
            assert value is not None
            inner = self.of(value, scope)
            if not inner:
                return set()
            found |= inner
        return found

    def _unpacked(self, binding: Binding, scope: Scope) -> set[Variable]:
        """Return the variables of what a name gets of a parameter: `encoder, decoder = models`, called with a list."""
        value = binding.value
        given = scope.bindings.get(value.id, []) if isinstance(value, ast.Name) else []
        if len(binding.path) != 1 or [b.kind for b in given] != ["parameter"]:
            return set()
        assert value is not None
        return self._of_entry(value, binding.path[0], scope)

    def _of_entry(self, value: ast.expr, key: int | str, scope: Scope) -> set[Variable]:
        """Return the variables that hold an entry of the lists, tuples and dicts that an expression can be."""
        values = self.analysis.evaluate(value, scope)
        entries = (entry for value in values for entry in self.analysis.containers.written(value, key))
        return set().union(*(self.of(*entry) for entry in entries))

    def _hands_on(self, value: ast.expr | None, scope: Scope) -> bool:
        if not isinstance(value, ast.Call):
            return False
        names = self.analysis.called(value, scope)
        if "enumerate" in names or not names.isdisjoint(self.analysis.library.same_functions):
            return True
        return bool(value.args) and self._is_generator(value, scope)

    def _is_generator(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call runs a generator of the project, which hands on what it is given: inf_loop(loader)."""
        functions = [v for v in self.analysis.evaluate(call.func, scope) if isinstance(v, LocalFunction)]
        return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for f in functions for node in own_nodes(f.node))

    def _of_import(self, binding: Binding, scope: Scope) -> set[Variable]:
        path = self.analysis.modules.find(binding.dotted, binding.level, scope.source)
        source = self.analysis.modules.sources.get(path) if path else None
        if source is None or not binding.member:
            return set()
        module = self.analysis.module_scopes[source]  # perhaps this one: a package that imports its own part
        return self._once((binding, module), lambda: self._of_name(binding.member, module))

    def _of_parameter(self, name: str, scope: Scope) -> set[Variable]:
        return self._once((scope, name), lambda: self._from_callers(name, scope))

    def _from_callers(self, name: str, scope: Scope) -> set[Variable]:
        function = scope.node
        assert isinstance(function, FUNCTIONS)
        names = given_parameters(scope)
        found: set[Variable] = set()
        reached, sites = known_scopes(self.analysis), self.analysis.callers(function)
        for site in [site for site in sites if site.scope in reached] or sites:
            if site.call in self.leave_out:
                continue
            argument, default = site.argument(names, name), default_of(function, name)
            spread = site.spread_for(names, name) if argument is None else None
            if spread is not None:
                found |= self._of_entry(*spread)
            elif argument is not None:
                inner = self.of(*argument)
                found |= inner or ({Variable(scope, name)} if self._is_kept(argument, name, scope) else set())
            elif default is not None:
                found |= self.of(default, scope.parent or scope)
        # A parameter that is given another value in the function lives there from then on.
        own = [b for b in scope.bindings.get(name, []) if b.kind == "value"]
        return found or ({Variable(scope, name)} if own or not self.analysis.callers(function) else set())

    def _is_kept(self, argument: tuple[ast.expr, Scope], name: str, scope: Scope) -> bool:
        """Return whether an argument makes an object that a rewrite may replace, which no variable holds before."""
        if not isinstance(argument[0], ast.Call):
            return False
        library = self.analysis.library
        given = [origin for origin in origins(self.analysis, [Origin(*argument)]) if isinstance(origin.node, ast.Name)]
        if any(self._owns(origin.node.id, origin.scope) for origin in given):  # type: ignore[union-attr]
            return False  # pretrain() returns what it has trained
        if any(library.is_replaced(self.analysis, value) for value in self.analysis.evaluate(*argument)):
            return True
        return self._owns(name, scope)

    def _owns(self, name: str, scope: Scope) -> bool:
        """Return whether a function asks a variable for what such an object owns: model.parameters()."""
        methods = self.analysis.library.owning_methods
        asked = (n for n in own_nodes(scope.node).of(ast.Attribute) if n.attr in methods)
        return any(isinstance(node.value, ast.Name) and node.value.id == name for node in asked)

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> set[Variable]:
        if node.attr == "module":
            inner = self.of(node.value, scope)
            if inner:
                return inner
        found: set[Variable] = set()
        for base in self.analysis.evaluate(node.value, scope):
            if isinstance(base, Instance):
                found |= self._of_own_attribute(base.scope, node.attr) or self._of_property(base, node.attr)
            elif isinstance(base, LocalModule):
                found |= self._of_name(node.attr, base.scope)
        return found

    def _of_own_attribute(self, class_scope: Scope, name: str) -> set[Variable]:
        return self._once((class_scope, f"self.{name}"), lambda: self._from_assignments(class_scope, name))

    def _from_assignments(self, class_scope: Scope, name: str) -> set[Variable]:
        classes, reached = self.analysis.classes, known_scopes(self.analysis)
        setters = {kind: classes.attribute_bindings(kind, name) for kind in classes.setters(class_scope, name)}
        used = [kind for kind, bindings in setters.items() if any(scope in reached for _, scope in bindings)]
        return set().union(*(self._set_in(kind, name, setters[kind]) for kind in used or setters))

    def _of_property(self, base: Instance, name: str) -> set[Variable]:
        """Return the variables that a property hands out: self._model of `return self._model`."""
        getters, reached = self.analysis.getters(base, name), known_scopes(self.analysis)
        used = [getter for getter in getters if getter.scope in reached] or getters
        returned = [(value, getter.scope) for getter in used for value in returns_of(getter.node)]
        return self._once((base, name), lambda: set().union(*(self.of(*place) for place in returned)))

    def _set_in(self, class_scope: Scope, name: str, bindings: list[tuple[Binding, Scope]]) -> set[Variable]:
        if not bindings:
            return set()
        inner = self._held_by_other_names(bindings)
        if inner:
            return inner
        mro = self.analysis.classes.mro(class_scope)
        owners = (scope for scope in mro if name in self.analysis.classes.attributes_of(scope))
        return {Variable(next(owners, class_scope), name, True)}

    def _of_call(self, node: ast.Call, scope: Scope) -> set[Variable]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in self.analysis.library.same_methods:
            return self.of(node.func.value, scope)
        if node.args and not self.analysis.called(node, scope).isdisjoint(self.analysis.library.same_functions):
            return self.of(node.args[0], scope)
        if node.args and (self.analysis.called(node, scope) & {"enumerate"} or self._is_generator(node, scope)):
            return self.of(node.args[0], scope)
        return set()


def part_of(binding: Binding) -> ast.expr | None:
    """Return the expression that a name gets of `a, b = x, y`."""
    value = binding.value
    for index in binding.path:
        if not isinstance(value, (ast.Tuple, ast.List)) or not -len(value.elts) <= index < len(value.elts):
            return None
        value = value.elts[index]
    return value


def is_plain(value: ast.expr | None) -> bool:
    """Return whether an expression names an object that something else holds: `model`, self.nets[0], a if b else c."""
    if isinstance(value, ast.IfExp):
        return is_plain(value.body) and is_plain(value.orelse)
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))
