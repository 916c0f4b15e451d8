"""Follows values through a project; see `values` for what a value is."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ..calls import CallSite, argument_for, default_of, given_parameters, is_method, is_property, last_name, returns_of
from ..files.modules import Modules
from ..files.runtime_names import canonical
from ..files.source import Source
from ..flow.calls.spawned import Spawned
from ..library import PYTHON, Library
from ..memory import Memory
from ..python_api import NAMED_TUPLES, TUPLE_OF_NAMES
from ..scopes import FUNCTIONS, Binding, Function, Scope, build_scopes, own_nodes, parameters
from .attribute_names import in_dict_of_names, named_by_text
from .classes import Classes
from .containers import Containers
from .decorators import Registries, applications, is_followed, taking
from .held import one_picked, set_outside
from .kinds import (
    NOTHING,
    Display,
    External,
    Instance,
    Item,
    LocalClass,
    LocalFunction,
    LocalModule,
    Member,
    Result,
    Value,
    Values,
    name_of,
)

S = TypeVar("S")


class Analysis:
    """Scopes of all files, and questions about expressions in them."""

    def __init__(self, modules: Modules, library: Library = PYTHON) -> None:
        self.modules = modules
        self.library = library
        self.scope_of_node: dict[ast.AST, Scope] = {}
        self.module_scopes: dict[Source, Scope] = {}
        for source in modules.sources.values():
            scope, scopes = build_scopes(source)
            self.module_scopes[source] = scope
            self.scope_of_node.update(scopes)
        self._holding = {node: scope for scope in self.scopes() for node in own_nodes(scope.node)}
        self._facts: dict[str, Any] = {}
        self.classes = Classes(self)
        self.containers = Containers(self)
        self.spawned = Spawned(self)
        self._memory: Memory[Values] = Memory(NOTHING)
        self._sets: dict[Values, Values] = {}  # each set of values once: as a key, it is then compared by identity
        self._names_of: dict[Values, set[str]] = {}
        self._called_names: dict[ast.Call, tuple[Scope, set[str]]] = {}
        self._functions_called: dict[ast.Call, tuple[Scope, list[LocalFunction]]] = {}
        self._callers: dict[Function, list[CallSite]] = {}
        self.decorations: dict[ast.AST, list[ast.Call]] = defaultdict(list)  # what decorators do, as calls
        self._registries = Registries(self, [])
        self._index_calls()

    # Scopes, facts, callers.

    @cached_property
    def _scopes(self) -> list[Scope]:
        return [scope for module in self.module_scopes.values() for scope in module.walk()]

    def scopes(self) -> list[Scope]:
        return self._scopes

    def scope_at(self, source: Source, node: ast.AST) -> Scope:
        """Return the scope in which an expression or statement of `source` is evaluated."""
        around = chain((node,), source.ancestors(node))  # an annotation is in no body, what it annotates is
        return next((self._holding[outer] for outer in around if outer in self._holding), self.module_scopes[source])

    def scope_of(self, node: ast.AST, default: S) -> Scope | S:
        """Return the scope whose statements have a node in them, `default` for one that is none of theirs."""
        return self._holding.get(node, default)

    def fact(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return something about the whole project, worked out when it is first asked for."""
        if name not in self._facts:
            self._facts[name] = compute()
        return self._facts[name]

    def callers(self, function: Function) -> list[CallSite]:
        """Return the calls of a function of the project, as far as they can be told."""
        return self._callers.get(function, [])

    def site_of(self, call: ast.Call, scope: Scope, function: LocalFunction) -> CallSite:
        """Return a call as one of this function, with what functools.partial has bound before."""
        sites = (site for site in self.callers(function.node) if site.call is call)
        return next(sites, CallSite(call, scope))

    # Values.

    def evaluate(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return what `node`, which is in `scope`, can be."""
        if node is None:
            return NOTHING
        known = self._memory.known.get((node, scope))
        if known is not None:
            return known
        return self._memory.once((node, scope), lambda: self._sets.setdefault(v := self._evaluate(node, scope), v))

    def _is_settled(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether what `evaluate` answers stays the same: no question that it depends on is open."""
        return (node, scope) in self._memory.known

    def answer(self, question: tuple[object, ...], compute: Callable[[], Values]) -> Values:
        """Return the answer to a question about values, of which those that wait for this answer are left out."""
        return self._memory.once(question, compute)

    def named(self, node: ast.expr | None, scope: Scope) -> set[str]:
        """Return the full names of what `node` can be, and of what made it."""
        return self._names(self.evaluate(node, scope))

    def called(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return the full names of the functions outside the project that a call can run."""
        known = self._called_names.get(call)
        if known is not None and known[0] is scope:
            return known[1]
        outside = (value for value in self.evaluate(call.func, scope) if isinstance(value, (External, Member)))
        names = {name_of(value) for value in outside} - {""}
        if self._is_settled(call.func, scope):
            self._called_names[call] = scope, names
        return names

    def last_names(self, call: ast.Call, scope: Scope) -> list[str]:
        """Return the names, without their modules, of what a call can run: the written one where none is known."""
        return sorted({name.rpartition(".")[2] for name in self.called(call, scope)}) or [last_name(call)]

    def _names(self, values: Values) -> set[str]:
        if values not in self._names_of:
            self._names_of[values] = {name_of(value) for value in values} - {""}
        return self._names_of[values]

    # How.

    def _evaluate(self, node: ast.expr, scope: Scope) -> Values:
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.IfExp):
            return self.evaluate(node.body, scope) | self.evaluate(node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.evaluate(part, scope) for part in node.values))
        if isinstance(node, (ast.NamedExpr, ast.Await, ast.Starred)):
            return self.evaluate(node.value, scope)
        if isinstance(node, ast.Lambda):
            return frozenset([LocalFunction(node, self.scope_of_node[node])])
        if isinstance(node, ast.Subscript):
            return self._of_subscript(node, scope)
        return frozenset([Display(node, scope)])

    def _of_name(self, name: str, scope: Scope) -> Values:
        found = scope.find(name)
        if found is None:
            return self._of_star(name, scope.module) or frozenset([External(name)])
        owner, bindings = found
        return self._memory.once((owner, name), lambda: self.of_bindings(bindings, owner))

    def _of_star(self, name: str, module: Scope) -> Values:
        for binding in module.star_imports:
            path = self.modules.find(binding.dotted, binding.level, module.source)
            if path in self.modules.sources:
                other = self.module_scopes[self.modules.sources[path]]
                if name in other.bindings or other.star_imports:
                    values = self._memory.once((other, name, "star"), partial(self._of_name, name, other))
                    values = frozenset(value for value in values if value != External(name))
                    if values:
                        return values
        return NOTHING

    def of_bindings(self, bindings: list[Binding], scope: Scope) -> Values:
        """Return what a name of `scope` can be by some of its bindings."""
        return frozenset().union(*(self._of_binding(binding, binding.elsewhere or scope) for binding in bindings))

    def _of_binding(self, binding: Binding, scope: Scope) -> Values:
        if binding.kind == "value":
            return self.containers.at(self.evaluate(binding.value, scope), binding.path)
        if binding.kind == "item":
            return self.containers.elements(binding.value, scope, binding.path)
        if binding.kind == "enter":
            return self.evaluate(binding.value, scope)
        if binding.kind == "definition":
            inner = self.scope_of_node[binding.node]
            if isinstance(binding.node, ast.ClassDef):
                return frozenset([LocalClass(inner)])
            return frozenset([LocalFunction(inner.node, inner)])  # type: ignore[arg-type]
        if binding.kind == "import":
            return self._of_import(binding, scope)
        if binding.kind == "parameter":
            return self._of_parameter(binding.name, scope)
        return NOTHING

    def _of_import(self, binding: Binding, scope: Scope) -> Values:
        path = self.modules.find(binding.dotted, binding.level, scope.source)
        source = self.modules.sources.get(path) if path else None
        if not binding.member:
            value = LocalModule(self.module_scopes[source]) if source else External(canonical(binding.dotted))
            return frozenset([value])
        inner = f"{binding.dotted}.{binding.member}" if binding.dotted else binding.member
        if source is not None:
            path = self.modules.find(inner, binding.level, scope.source)
            return self._of_module(binding.member, self.module_scopes[source], path)
        path = self.modules.find(inner, binding.level, scope.source)
        if path in self.modules.sources:
            return frozenset([LocalModule(self.module_scopes[self.modules.sources[path]])])
        return NOTHING if binding.level else frozenset([External(canonical(inner))])

    def _of_module(self, name: str, module: Scope, part: Path | None) -> Values:
        """Return what a module has under a name: by its own bindings, or as the module of its package in `part`."""
        values = self._of_name(name, module) if name in module.bindings else self._of_star(name, module)
        if values:
            return values
        if part in self.modules.sources:  # also where the package imports it from itself: `from . import part`
            return frozenset([LocalModule(self.module_scopes[self.modules.sources[part]])])
        return frozenset([External(name)]) if module.star_imports and name not in module.bindings else NOTHING

    def _of_parameter(self, name: str, scope: Scope) -> Values:
        function = scope.node
        assert isinstance(function, FUNCTIONS)
        names = parameters(function)
        if is_method(scope) and names and name == names[0]:
            return self.classes.receivers(scope)
        names = given_parameters(scope)
        found: set[Value] = set()
        for site in self.callers(function):
            argument = site.argument(names, name)
            spread = site.spread_for(names, name) if argument is None else None
            if spread is not None:
                values, key, where = spread
                entries = (e for value in self.evaluate(values, where) for e in self.containers.written(value, key))
                found = found.union(*(self.evaluate(*entry) for entry in entries))
            found |= self.evaluate(*argument) if argument is not None else NOTHING
        default = default_of(function, name)
        return frozenset(found | self.evaluate(default, scope.parent or scope))

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> Values:
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
            return self._of_super(node.attr, scope)
        found: set[Value] = set()
        outer = scope.source.parents.get(node)
        is_called = isinstance(outer, ast.Call) and outer.func is node
        for base in self.evaluate(node.value, scope):
            found |= self.members(base, node.attr)
            found |= set_outside(self, base, node.attr) if is_called else NOTHING
        return frozenset(found)

    def _of_super(self, name: str, scope: Scope) -> Values:
        own = scope.enclosing_class()
        for parent in self.classes.mro(own)[1:] if own else []:
            method = self.classes.method(parent, name)
            if method is not None:
                return frozenset([LocalFunction(method.node, method.scope, own)])
        return NOTHING

    def members(self, base: Value, name: str) -> Values:
        """Return what the attribute `name` of a value can be."""
        if isinstance(base, External):
            dotted = f"{base.name}.{name}"
            path = self.modules.namespaces.get(dotted)
            source = self.modules.sources.get(path) if path else None
            return frozenset([LocalModule(self.module_scopes[source]) if source else External(canonical(dotted))])
        if isinstance(base, LocalModule):
            package = base.scope.source.path.parent / name
            files = (package / "__init__.py", package.with_name(f"{name}.py"))
            return self._of_module(name, base.scope, next((f for f in files if f in self.modules.sources), None))
        if isinstance(base, (Instance, LocalClass)):
            return self._of_own_attribute(base, name)
        if isinstance(base, Result) and name in (parameters := self.library.kept_arguments.get(base.builder, [])):
            return self.evaluate(argument_for(base.call, parameters, name), base.scope) | {Member(base, name)}
        if isinstance(base, (Result, Member, Item)):
            return frozenset([Member(base, name)])
        return NOTHING

    def _of_own_attribute(self, base: Instance | LocalClass, name: str) -> Values:
        method = self.classes.method(base.scope, name)
        if method is not None and is_property(method.node):
            return frozenset().union(*map(self._returned, self.getters(base, name)))
        if method is not None:
            return frozenset([method, *self._overrides(base, name)])

        def compute() -> Values:
            found = self.classes.attribute_bindings(base.scope, name)
            return frozenset().union(*(self._of_binding(binding, scope) for binding, scope in found))

        values = self._memory.once((base.scope, name, "attribute"), compute)
        return values or frozenset(self._overrides(base, name)) or frozenset([Member(base, name)])

    def getters(self, base: Instance | LocalClass, name: str) -> list[LocalFunction]:
        """Return the properties that `self.name` can run."""
        methods = [self.classes.method(base.scope, name), *self._overrides(base, name)]
        return [method for method in methods if method is not None and is_property(method.node)]

    def _overrides(self, base: Instance | LocalClass, name: str) -> list[LocalFunction]:
        """Return the methods that `self.name()` can run in objects of derived classes."""
        if not isinstance(base, Instance) or base.call is not None:
            return []
        methods = (self.classes.own_method(scope, name) for scope in self.classes.derived(base.scope))
        return [method for method in methods if method]

    def _of_call(self, node: ast.Call, scope: Scope) -> Values:
        called = (self._called(function, node, scope) for function in self.evaluate(node.func, scope))
        found: Values = frozenset().union(*called)
        if not found and isinstance(node.func, ast.Attribute):
            if node.func.attr in self.library.same_methods:
                return self.evaluate(node.func.value, scope)
            return self.containers.got(node.func, node, scope)
        return self._registries.chosen(found, node, scope)

    def _called(self, function: Value, node: ast.Call, scope: Scope) -> Values:
        if isinstance(function, LocalFunction):
            return self._returned(function)
        if isinstance(function, LocalClass):
            return frozenset([Instance(function.scope, node)])
        if isinstance(function, Member):
            if function.name in self.library.same_methods:
                return frozenset([function.base])
            if isinstance(function.base, LocalClass) and function.name in self.library.creating_methods:
                return frozenset([Instance(function.base.scope, node)])
            name = name_of(function)
            return frozenset([Result(name, node, scope, function.base), *one_picked(self, name, node, scope)])
        if isinstance(function, External):
            if function.name in self.library.same_functions and node.args:
                return self.evaluate(node.args[0], scope)
            by_name = named_by_text(self, function.name, node, scope)
            if by_name:
                return by_name
            others = *self._wrapped(function.name, node, scope), *one_picked(self, function.name, node, scope)
            return frozenset([Result(function.name, node, scope), *others])
        if isinstance(function, Result) and function.is_partial:
            return self._of_partial(function, node, scope)
        if isinstance(function, Result) and function.builder in NAMED_TUPLES:
            return frozenset([Result(TUPLE_OF_NAMES, node, scope)])
        return NOTHING

    def _wrapped(self, function: str, node: ast.Call, scope: Scope) -> list[Instance]:
        """Return the objects of the project that a wrapper of a library runs when it is called: Wrapper(model)."""
        given = node.args[self.library.wrappers.get(function, len(node.args)) :][:1]
        return [value for part in given for value in self.evaluate(part, scope) if isinstance(value, Instance)]

    def _of_partial(self, partial: Result, node: ast.Call, scope: Scope) -> Values:
        """Return what a call of functools.partial(f, ...) gives, with the partial as receiver: it has arguments too."""

        def compute() -> Values:
            functions = self.evaluate(partial.call.args[0], partial.scope)
            values = (value for function in functions for value in self._called(function, node, scope))
            return frozenset(
                replace(value, receiver=partial) if isinstance(value, Result) and value.call is node else value
                for value in values
            )

        return self._memory.once((partial.call, node), compute)

    def _returned(self, function: LocalFunction) -> Values:
        if isinstance(function.node, ast.Lambda):
            return self.evaluate(function.node.body, function.scope)

        def compute() -> Values:
            return frozenset().union(*(self.evaluate(value, function.scope) for value in returns_of(function.node)))

        return self._memory.once((function.node, "returned"), compute)

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> Values:
        given = self.containers.given_as_keyword(node, scope)
        if given:
            return frozenset().union(*(self.evaluate(value, where) for value, where in given))
        if named := in_dict_of_names(self, node, scope):
            return named
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return frozenset().union(*(self.containers.entry(base, key) for base in self.evaluate(node.value, scope)))

    def _index_calls(self) -> None:
        """Find who calls which function: first without arguments that are functions themselves, then with them."""
        calls = [(source, call) for source in self.modules.sources.values() for call in source.nodes.of(ast.Call)]
        sites = [CallSite(call, self.scope_at(source, call)) for source, call in calls]
        decorations = applications(self)
        sites += decorations
        for site in decorations:
            self.decorations[site.scope.source.parents[site.call]].append(site.call)
        for _ in range(2):
            self.classes.index()
            callers: dict[Function, list[CallSite]] = defaultdict(list)
            for site in sites:
                values = self.evaluate(site.call.func, site.scope)
                for function, bound in taking(site, [pair for value in values for pair in self.functions_of(value)]):
                    if is_followed(site.call, function.node):
                        callers[function.node].append(replace(site, bound=bound))
            self._callers = callers
            self._forget_values()
            self._registries = Registries(self, sites)
            self._forget_values()
        self.classes.index()
        self._functions_called.clear()
        self._called_names.clear()

    def _forget_values(self) -> None:
        self._memory = Memory(NOTHING)
        self._called_names.clear()
        self._functions_called.clear()

    def functions_called(self, call: ast.Call, scope: Scope) -> list[LocalFunction]:
        """Return the functions of the project that a call can run: a class's __init__, an object's forward too."""
        known = self._functions_called.get(call)
        if known is not None and known[0] is scope:
            return known[1]
        values = self.evaluate(call.func, scope)
        found = [pair for value in values if not isinstance(value, Result) for pair in self.functions_of(value)]
        functions = [function for function, _ in taking(CallSite(call, scope), found)]
        if self._is_settled(call.func, scope):
            self._functions_called[call] = scope, functions
        return functions

    def functions_of(
        self, value: Value, bound: tuple[CallSite, ...] = ()
    ) -> Iterator[tuple[LocalFunction, tuple[CallSite, ...]]]:
        """Yield the functions that a call of a value runs, with the calls of functools.partial that it is made by."""
        found: list[LocalFunction | None] = []
        if isinstance(value, LocalFunction):
            found.append(value)
        elif isinstance(value, LocalClass):
            found.append(self.classes.method(value.scope, "__init__"))
        elif isinstance(value, Instance):
            found += [self.classes.method(value.scope, name) for name in ("__call__", "forward")]
        elif isinstance(value, Result) and value.is_partial and all(value.call is not site.call for site in bound):
            outer = (CallSite(value.call, value.scope), *bound)
            for inner in self.evaluate(value.call.args[0], value.scope):
                yield from self.functions_of(inner, outer)
        yield from ((function, bound) for function in found if function)
