"""Reachability: the code of a project that runs when its entry script is started, as far as that can be told."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Set

from ..nodes import Places
from ..scopes import FUNCTIONS, Scope, own_calls, own_nodes
from ..values.asked_kinds import kinds_asked_for
from ..values.attribute_names import in_dict_of_names, is_taken_by_text, names_taken, takes_classes_by_text
from ..values.inference import Analysis
from ..values.kinds import LocalClass, LocalFunction, Value
from .main_guard import is_under_main_of_another

REFERRING = (ast.ClassDef, ast.Lambda, ast.Name, ast.Attribute, ast.Subscript, ast.Call)  # to functions and classes


def reached_scopes(analysis: Analysis) -> set[Scope]:
    """Return the modules, and the functions that are called or handed on in them and in what they reach.

    A method is reached through an object that the analysis cannot see when anything reached calls its name, if
    anything reached names its class or one derived from it: another trainer of the same file is not run. Where none
    of the library's `starts` is reached (a decorator makes it a command, another script calls it), these run as well.
    """
    reach = _Reach(analysis)
    reach.extend(list(analysis.module_scopes.values()))
    starts = analysis.library.starts(analysis)
    if not reach.scopes.intersection(starts):
        for scope in starts:
            reach.extend([scope, *reach.make(scope.enclosing_class())])
    return reach.scopes


def known_scopes(analysis: Analysis) -> set[Scope]:
    """Return `reached_scopes`, worked out once."""
    return analysis.fact("reached scopes", lambda: reached_scopes(analysis))


def reached_nodes(analysis: Analysis) -> Places[Scope]:
    """Return every node of the code that runs, in source order, with the scope it is in."""
    return analysis.fact("reached", lambda: Places(_reached_nodes(analysis)))


def _reached_nodes(analysis: Analysis) -> Iterator[tuple[ast.AST, Scope]]:
    reached = known_scopes(analysis)
    for scope in analysis.scopes():
        if scope in reached:
            for node in own_nodes(scope.node):
                if not is_under_main_of_another(analysis, scope, node):
                    yield node, scope


def reached_calls(analysis: Analysis) -> list[tuple[ast.Call, Scope]]:
    """Return every call of the code that runs, in source order, with the scope it is in."""
    return reached_nodes(analysis).of(ast.Call)


def calls_named(analysis: Analysis, names: Set[str]) -> list[tuple[ast.Call, Scope]]:
    """Return the calls of the code that runs that can run one of these functions from outside the project, in order."""
    index = _calls_by_name(analysis)
    places = {place for name in names for place in index.get(name, ())}
    calls = reached_calls(analysis)
    return [calls[place] for place in sorted(places)]


def names_called(analysis: Analysis) -> Set[str]:
    """Return the names of all functions from outside the project that the code that runs can call."""
    return _calls_by_name(analysis).keys()


def _calls_by_name(analysis: Analysis) -> dict[str, list[int]]:
    def find() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, (call, scope) in enumerate(reached_calls(analysis)):
            for name in analysis.called(call, scope):
                found.setdefault(name, []).append(place)
        return found

    return analysis.fact("calls by name", find)


def objects_made(analysis: Analysis) -> dict[Scope, list[tuple[ast.Call, Scope]]]:
    """Return the calls that make objects of each class of the project, or of one derived from it."""
    return analysis.fact("objects made", lambda: _objects_made(analysis))


def _objects_made(analysis: Analysis) -> dict[Scope, list[tuple[ast.Call, Scope]]]:
    found: dict[Scope, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for call, scope in reached_calls(analysis):
        for value in analysis.evaluate(call.func, scope):
            if isinstance(value, LocalClass):
                for base in analysis.classes.mro(value.scope):
                    found[base].append((call, scope))
    return found


def calls_within(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield a call and the calls in the functions of the project that it runs, with the scopes they are in."""
    seen: set[ast.AST] = set()
    waiting = [(call, scope)]
    while waiting:
        node, where = waiting.pop()
        yield node, where
        for function in analysis.functions_called(node, where):
            if function.node not in seen:
                seen.add(function.node)
                waiting += [(part, function.scope) for part in own_calls(function.node)]


class _Reach:
    """The scopes reached so far, the classes named in them, and the methods that wait for their class to be named."""

    def __init__(self, analysis: Analysis) -> None:
        self.scopes: set[Scope] = set()
        self._analysis = analysis
        self._methods: dict[str, list[Scope]] = defaultdict(list)
        for scope in analysis.scopes():
            if _is_method(scope) and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._methods[scope.node.name].append(scope)
        self._waiting: dict[Scope, list[Scope]] = defaultdict(list)
        self._made: set[Scope] = set()
        self._any_is_made = takes_classes_by_text(analysis)
        self._asked_for = kinds_asked_for(analysis)

    def extend(self, waiting: list[Scope]) -> None:
        """Add the scopes in `waiting`, and all that they reach."""
        while waiting:
            scope = waiting.pop()
            if scope in self.scopes:
                continue
            self.scopes.add(scope)
            bases: set[ast.AST] = set()  # a derived class makes no object of its base
            for node in own_nodes(scope.node).of(*REFERRING):
                if is_under_main_of_another(self._analysis, scope, node):
                    continue
                if isinstance(node, ast.ClassDef):
                    bases.update(node.bases)
                found = self._referred_to(node, scope) if node not in bases else ()
                waiting += [inner for inner in found if inner not in self.scopes]

    def make(self, kind: Scope | None) -> Iterator[Scope]:
        """Take note that there can be objects of a class, and yield its methods that were called before."""
        for scope in self._analysis.classes.mro(kind) if kind is not None else ():
            if scope not in self._made:
                self._made.add(scope)
                yield from self._waiting.pop(scope, ())

    def _referred_to(self, node: ast.AST, scope: Scope) -> Iterator[Scope]:
        inner = self._analysis.scope_of_node.get(node)
        if inner is not None and isinstance(node, ast.ClassDef):
            yield inner
            if self._any_is_made or _makes_itself_known(self._analysis, inner):
                yield from self.make(inner)
        for value in in_dict_of_names(self._analysis, node, scope):
            yield from self._of_value(value)
        if node in self._asked_for:
            return
        is_taken = is_taken_by_text(node)
        if is_taken or (isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)):
            assert isinstance(node, ast.expr)
            for value in self._analysis.evaluate(node, scope):
                yield from self._of_value(value)
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.Call):
                names = names_taken(self._analysis, node, list(self._methods))
            for name in names:
                for method in self._methods.pop(name, []):  # once is enough: all of them
                    yield from self._called(method)
        elif isinstance(node, FUNCTIONS) and isinstance(node, ast.Lambda) and inner is not None:
            yield inner

    def _of_value(self, value: Value) -> Iterator[Scope]:
        if isinstance(value, LocalFunction):
            yield from self._called(value.scope)
        elif isinstance(value, LocalClass):
            yield from self.make(value.scope)
            for name in self._analysis.library.called_from_outside:
                method = self._analysis.classes.method(value.scope, name)
                if method is not None:
                    yield method.scope

    def _called(self, function: Scope) -> Iterator[Scope]:
        """Yield a function that is called, a method once its class is named."""
        if not _is_method(function) or function.parent in self._made:
            yield function
        else:
            self._waiting[function.parent].append(function)  # type: ignore[index]


def _is_method(scope: Scope) -> bool:
    return scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef)


def _makes_itself_known(analysis: Analysis, kind: Scope) -> bool:
    """Return whether a class is given to something where it is defined: a decorator, its metaclass or a base of it."""
    assert isinstance(kind.node, ast.ClassDef)
    if kind.node.decorator_list or kind.node.keywords:
        return True
    return analysis.classes.method(kind, "__init_subclass__") is not None
