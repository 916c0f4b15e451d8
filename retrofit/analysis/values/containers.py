"""Contents of containers: lists, tuples, dicts and the **options of a function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..calls import CallSite, later_entries
from ..python_api import LOOKS_UP
from ..scopes import FUNCTIONS, Scope, own_nodes
from .attribute_names import in_dict_of_names, listed_members
from .held import DICT, objects_added, objects_held, several_picked
from .kinds import NOTHING, Display, Item, Result, Value, Values
from .mapped import MAP, applied

if TYPE_CHECKING:
    from .inference import Analysis

LISTS = {"list", "tuple"}
CALLED_DICTS = {"dict", "collections.OrderedDict", "collections.defaultdict"}
MOST_DEPTH = 4  # of dicts that are put together from others


class Containers:
    """Answers questions about what is in a container."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def entry(self, base: Value, key: object) -> Values:
        """Return what a container holds under `key`, or anywhere when the key is not known."""
        if not isinstance(base, (Display, Result)):
            return frozenset([Item(base, key if isinstance(key, str) else "")])
        # it may hold what is taken from itself: names = random.sample(names, 8)
        return self._analysis.answer(("entry", base, key), lambda: self._entry(base, key))

    def _entry(self, base: Display | Result, key: object) -> Values:
        exact = self.written(base, key) if isinstance(key, (int, str)) else []
        if exact:
            return frozenset().union(*(self._analysis.evaluate(part, scope) for part, scope in exact))
        if pairs := self._pairs(base):
            return self._union([value for _, value in pairs], base.scope)
        if isinstance(base, Result) and base.builder == MAP and (made := applied(base.call, base.scope)) is not None:
            return self._analysis.evaluate(made, base.scope)
        if isinstance(base, Result) and base.builder in LISTS and base.call.args:
            listed = self._analysis.evaluate(base.call.args[0], base.scope)
            called = base.call.args[0].func if isinstance(base.call.args[0], ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr == "values":  # of a dict, in their order
                return self.elements(base.call.args[0], base.scope, ())
            held = [v for v in listed if isinstance(v, Display) or (isinstance(v, Result) and v.builder == MAP)]
            if held:
                return frozenset().union(*(self.entry(value, key) for value in held))
        if isinstance(base, Result) and (picked := several_picked(self._analysis, base)):
            return picked | {Item(base)}
        if isinstance(base, Result) and (objects := objects_held(self._analysis, base, key)):
            return objects | {Item(base)}
        if not isinstance(base, Display):
            return frozenset([Item(base, key if isinstance(key, str) else "")])
        node, scope = base.node, base.scope
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._union(node.elts, scope) or objects_added(self._analysis, base)
        if isinstance(node, ast.DictComp):
            return self._analysis.evaluate(node.value, scope)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._analysis.evaluate(node.elt, scope)
        return NOTHING

    def written(self, base: Value, key: int | str) -> list[tuple[ast.expr, Scope]]:
        """Return the expressions that are written down for an entry of a container, and the scope they are in."""
        if not isinstance(base, (Display, Result)):
            return []
        node = base.node if isinstance(base, Display) else base.call
        if isinstance(node, (ast.Tuple, ast.List)):
            is_there = isinstance(key, int) and -len(node.elts) <= key < len(node.elts)
            return [(node.elts[key], base.scope)] if is_there else []  # type: ignore[index]
        pairs = self._pairs(base)
        found = [(value, base.scope) for name, value in pairs if _literal(name) == key]
        if found or not isinstance(key, str):
            return found
        return [place for name, part in pairs if name is None for place in self.places(part, base.scope, key)]

    def _pairs(self, base: Display | Result) -> list[tuple[ast.expr | None, ast.expr]]:
        """Return the keys and values of {"name": value}, dict(name=value) or OrderedDict(), also those of later.

        The key of `**others` is None.
        """
        if isinstance(base, Result):
            if base.builder not in CALLED_DICTS or (base.call.args and base.builder != "collections.defaultdict"):
                return []
            given = [(ast.Constant(part.arg) if part.arg else None, part.value) for part in base.call.keywords]
            return [*given, *self._later(base.call, base.scope)]
        node = base.node
        return [*zip(node.keys, node.values), *self._later(node, base.scope)] if isinstance(node, ast.Dict) else []

    def _later(self, node: ast.Dict | ast.Call, scope: Scope) -> list[tuple[ast.expr, ast.expr]]:
        """Return the keys and values that a dict gets later, by its name or as an attribute of a class."""
        found = later_entries(node, scope)
        owner = scope.enclosing_class()
        return found if found or owner is None else self._of_attribute(node, owner)

    def _of_attribute(self, node: ast.Dict | ast.Call, owner: Scope) -> list[tuple[ast.expr, ast.expr]]:
        """Return the keys and values that methods of a class put into a dict that it or its objects have."""
        classes = self._analysis.classes
        of_objects = (binding for bindings in classes.attributes_of(owner).values() for binding, _ in bindings)
        for binding in [*of_objects, *(binding for bindings in owner.bindings.values() for binding in bindings)]:
            value = binding.value
            if isinstance(value, ast.Tuple) and len(binding.path) == 1:
                value = value.elts[binding.path[0]]
            if value is node:
                return classes.entries_of(owner, binding.name)
        return []

    def at(self, values: Values, path: tuple[int, ...]) -> Values:
        """Return what is at `path` in containers within containers."""
        for index in path:
            values = frozenset().union(*(self.entry(value, index) for value in values))
        return values

    def got(self, method: ast.Attribute, call: ast.Call, scope: Scope) -> Values:
        """Return what `table.get(key, default)` can be, for a dict of the project, or of a module's names."""
        named = in_dict_of_names(self._analysis, call, scope)
        if named:
            return named | self._union(call.args[1:2], scope)
        tables = self._analysis.evaluate(method.value, scope) if method.attr in LOOKS_UP and call.args else NOTHING
        tables = frozenset(v for v in tables if isinstance(v, Display) and isinstance(v.node, (ast.Dict, ast.DictComp)))
        if not tables:
            return NOTHING
        key = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        return self._union(call.args[1:2], scope).union(*(self.entry(table, key) for table in tables))

    def elements(self, node: ast.expr | None, scope: Scope, path: tuple[int, ...]) -> Values:
        """Return what an iteration over `node` gives, at `path` inside each element."""
        analysis = self._analysis
        listed = listed_members(analysis, node, scope, path)
        if listed is not None:
            return listed
        if isinstance(node, ast.Call) and node.args:
            names = analysis.called(node, scope)
            if "enumerate" in names:
                return self.elements(node.args[0], scope, path[1:]) if path[:1] == (1,) else NOTHING
            if "zip" in names and path and isinstance(node.args[0], ast.Starred):  # the rows of what is given
                rows = self._anything(analysis.evaluate(node.args[0].value, scope))
                return self.at(self._anything(rows), path[1:])
            if "zip" in names and path:
                is_given = -len(node.args) <= path[0] < len(node.args)
                return self.elements(node.args[path[0]], scope, path[1:]) if is_given else NOTHING
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "items" and path[:1] == (1,):
                return self.at(self._anything(analysis.evaluate(node.func.value, scope)), path[1:])
            if node.func.attr == "values":
                return self.at(self._anything(analysis.evaluate(node.func.value, scope)), path)
        return frozenset().union(*(self._element(value, node, path) for value in analysis.evaluate(node, scope)))

    def _element(self, value: Value, node: ast.expr | None, path: tuple[int, ...]) -> Values:
        if isinstance(value, Result) and value.builder in ("enumerate", "zip") and value.call is not node:
            return self.elements(value.call, value.scope, path)  # with a progress bar or a name around it
        return self.at(self._iterated(value), path)

    def _iterated(self, value: Value) -> Values:
        """Return what an iteration gives: of a dict, its keys."""
        if isinstance(value, Display) and isinstance(value.node, ast.Dict):
            return self._union([name for name, _ in self._pairs(value) if name is not None], value.scope)
        if isinstance(value, Display) and isinstance(value.node, ast.DictComp):
            return self._analysis.evaluate(value.node.key, value.scope)
        if isinstance(value, Result) and self._analysis.library.holders.get(value.builder) == DICT:
            return frozenset([Item(value)])
        return self.entry(value, None)

    def given_as_keyword(self, node: ast.Subscript, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return what callers give for `kwargs["name"]` in a function with **kwargs, and where."""
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        sites = self._callers_of_options(node.value, scope) if key is not None else []
        keywords = [pair for site in sites for pair in site.keywords]
        return [(keyword.value, where) for keyword, where in keywords if keyword.arg == key]

    def places(self, node: ast.expr, scope: Scope, key: str, depth: int = MOST_DEPTH) -> list[tuple[ast.expr, Scope]]:
        """Return the expressions that a dict, or the **options of a function, can hold under `key`, and where."""
        pairs: list[tuple[object, ast.expr, Scope]] = []  # None as key: all that another dict holds
        for value in self._analysis.evaluate(node, scope):
            if isinstance(value, Display) and isinstance(value.node, ast.Dict):
                pairs += [(_literal(name), part, value.scope) for name, part in zip(value.node.keys, value.node.values)]
            elif isinstance(value, Result) and value.builder == "dict":
                pairs += _arguments(value.call, value.scope)
        owner, _ = scope.find(node.id) or (scope, []) if isinstance(node, ast.Name) else (scope, [])
        entries = owner.entries.get(getattr(node, "id", ""), [])
        pairs += [(_literal(name), part, self._analysis.scope_of(part, owner)) for name, part in entries]
        pairs += [pair for call in _updates(node, owner) for pair in _arguments(call, owner)]
        for site in self._callers_of_options(node, scope):
            pairs += [(keyword.arg, keyword.value, where) for keyword, where in site.keywords]
        found = [(part, where) for name, part, where in pairs if name == key]
        others = [(part, where) for name, part, where in pairs if name is None and depth and part is not node]
        return found + [place for part, where in others for place in self.places(part, where, key, depth - 1)]

    def _callers_of_options(self, node: ast.expr, scope: Scope) -> list[CallSite]:
        """Return the calls of the function whose **options this is."""
        owner = scope
        while owner.parent is not None and not owner.is_function:
            owner = owner.parent
        given = owner.node.args.kwarg if isinstance(owner.node, FUNCTIONS) else None
        if given is None or not isinstance(node, ast.Name) or given.arg != node.id:
            return []
        return self._analysis.callers(owner.node)  # type: ignore[arg-type]

    def _anything(self, values: Values) -> Values:
        return frozenset().union(*(self.entry(value, None) for value in values))

    def _union(self, nodes: list[ast.expr], scope: Scope) -> Values:
        analysis = self._analysis  # an entry may be written in a function, and the container outside of it
        return frozenset().union(*(analysis.evaluate(node, analysis.scope_of(node, scope)) for node in nodes))


def _literal(key: ast.expr | None) -> object:
    """Return the text of a key, None for `**other`; a computed key has no text."""
    return None if key is None else key.value if isinstance(key, ast.Constant) else key


def _arguments(call: ast.Call, scope: Scope) -> list[tuple[object, ast.expr, Scope]]:
    """Return what dict(...) and table.update(...) are given."""
    others: list[tuple[object, ast.expr, Scope]] = [(None, argument, scope) for argument in call.args]
    return others + [(keyword.arg, keyword.value, scope) for keyword in call.keywords]


def _updates(node: ast.expr, scope: Scope) -> list[ast.Call]:
    """Return the calls of `node.update(...)` in a scope."""
    calls = (call.func for call in own_nodes(scope.node).of(ast.Call))
    functions = [f for f in calls if isinstance(f, ast.Attribute) and f.attr == "update"]
    return [
        scope.source.parents[function]  # type: ignore[misc]
        for function in functions
        if isinstance(node, ast.Name) and isinstance(function.value, ast.Name) and function.value.id == node.id
    ]
