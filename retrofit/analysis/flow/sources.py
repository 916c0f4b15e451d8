"""Sources of a value: the expressions that an expression can have its value from, through a whole project.

Names lead to the assignments that reach them, parameters to the arguments of all calls, attributes to their
assignments, calls of the project's own functions to what these return, entries of containers to what is put there.
What operators and functions of libraries make of their operands is the caller's own question.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, Optional, TypeVar, Union

from ..calls import CallSite, argument_for, default_of, given_parameters, is_property, returns_of
from ..scopes import FUNCTIONS, Binding, Scope, own_nodes
from ..values.inference import Analysis
from ..values.kinds import Instance, LocalFunction, LocalModule, Result
from .bindings import bindings_of
from .reaching_definitions import live_bindings
from .stored import changes_of, literal_key, set_from_outside, stored_in

T = TypeVar("T", bound=Hashable)
Part = Union[ast.expr, ast.AugAssign]
Keys = tuple[object, ...]
Seen = frozenset[tuple[Scope, str]]  # names of modules that imports lead through
MOST_ORIGINS = 1000  # of one value
MOST_KEYS = 4  # of containers in containers
WITH_ENTRIES = frozenset({"list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "collections.deque"})


class Origin(NamedTuple):
    """An expression that a value can come from, or a statement `x += y` that changes it, with its scope.

    `keys`: of which entry of the containers it is the value, outermost first; None for any entry.
    """

    node: Part
    scope: Scope
    keys: Keys = ()

    def to(self, node: ast.expr, scope: Scope | None = None, keys: Keys | None = None) -> Origin:
        """Return another expression, in the same scope and of the same entry where nothing else is given."""
        return Origin(node, scope or self.scope, self.keys if keys is None else keys[:MOST_KEYS])


Through = Callable[[Origin], Optional[Iterable[Origin]]]


def origins(analysis: Analysis, starts: Iterable[Origin], through: Through = lambda origin: None) -> Iterator[Origin]:
    """Yield expressions and all that their values can come from, nearest first.

    `through` says where to continue from an expression: to the operands of a sum, say, or with () nowhere; with None to
    its `sources`.
    """

    def step(origin: Origin) -> Iterable[Origin]:
        found = through(origin)
        return sources(analysis, origin) if found is None else found

    return closure(starts, step)


def closure(starts: Iterable[T], step: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield all that steps lead to from `starts`, each once and what is near first."""
    waiting = deque(starts)
    seen: set[T] = set()
    while waiting and len(seen) < MOST_ORIGINS:
        item = waiting.popleft()
        if item not in seen:
            seen.add(item)
            yield item
            waiting += step(item)


def sources(analysis: Analysis, origin: Origin) -> tuple[Origin, ...]:
    """Return the expressions, one step before, that an expression can have its value from."""
    known: dict[Origin, tuple[Origin, ...]] = analysis.fact("sources", dict)
    if origin not in known:
        known[origin] = tuple(_sources(analysis, origin))
    return known[origin]


def _sources(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    node, scope, keys = origin
    if isinstance(node, ast.Name):
        owner, bindings = live_bindings(node, scope)
        yield from (found for binding in bindings for found in _of_binding(analysis, binding, owner, keys))
        if owner.parent is None:
            yield from (Origin(*place, keys) for place in set_from_outside(analysis, owner, node.id))
        yield from _put_in(analysis, origin)
    elif isinstance(node, ast.Attribute):
        yield from _of_attribute(analysis, node, origin)
    elif isinstance(node, ast.Call):
        yield from _of_call(analysis, node, origin)
    elif isinstance(node, ast.Subscript):
        given = analysis.containers.given_as_keyword(node, scope)
        yield from (origin.to(*place) for place in given)
        inner = (
            _before_slice(node.slice, keys) if isinstance(node.slice, ast.Slice) else (literal_key(node.slice), *keys)
        )
        yield from () if given else [origin.to(node.value, keys=inner)]
    elif isinstance(node, ast.IfExp):
        yield from (origin.to(part) for part in (node.body, node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (origin.to(part) for part in node.values)
    elif isinstance(node, (ast.NamedExpr, ast.Await, ast.Starred)):
        yield origin.to(node.value)
    elif keys:
        yield from entries(origin)


def entries(origin: Origin) -> Iterator[Origin]:
    """Yield the entries of a written container that are asked for, all of them where no key is."""
    node, key, rest = origin.node, *(origin.keys[:1] or (None,)), origin.keys[1:]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        is_index = isinstance(key, int) and not any(isinstance(part, ast.Starred) for part in node.elts)
        for part in node.elts[key:][:1] if is_index else node.elts:  # type: ignore[index]
            if isinstance(part, ast.Starred):
                yield origin.to(part.value, keys=(None, *rest))
            else:
                yield origin.to(part, keys=rest)
    elif isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values):
            if name is None:
                yield origin.to(value)
            elif may_be(literal_key(name), key):
                yield origin.to(value, keys=rest)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield origin.to(node.elt, keys=rest)
    elif isinstance(node, ast.DictComp):
        yield origin.to(node.value, keys=rest)


def _before_slice(part: ast.Slice, keys: Keys) -> Keys:
    """Return the keys, in the whole, of an entry of a slice: `x[2:]` begins with `x[2]`; None where it is not known."""
    first = 0 if part.lower is None else literal_key(part.lower)
    is_known = part.step is None and isinstance(first, int) and first >= 0
    if keys and is_known and isinstance(keys[0], int) and keys[0] >= 0:
        return (keys[0] + first, *keys[1:])  # type: ignore[operator]
    return (None, *keys[1:]) if keys else keys


def may_be(key: object, wanted: object) -> bool:
    """Return whether two keys can be the same; None is one that is not known."""
    return key is None or wanted is None or key == wanted


def functions_run(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is: no constructor."""
    found: list[LocalFunction | None] = []
    for value in analysis.evaluate(node.func, scope):
        is_partial = isinstance(value, Result) and value.is_partial
        inner = analysis.evaluate(value.call.args[0], value.scope) if is_partial else [value]  # type: ignore[union-attr]
        for function in inner:
            if isinstance(function, LocalFunction):
                found.append(function)
            elif isinstance(function, Instance):
                found += [analysis.classes.method(function.scope, name) for name in ("__call__", "forward")]
    return [function for function in found if function]


def _of_binding(
    analysis: Analysis, binding: Binding, scope: Scope, keys: Keys, seen: Seen = frozenset()
) -> Iterator[Origin]:
    if isinstance(binding.node, ast.AugAssign):
        yield Origin(binding.node, scope, keys)
    elif binding.kind == "parameter":
        yield from _of_parameter(analysis, binding.name, scope, keys)
    elif binding.kind == "import":
        yield from _imported(analysis, binding, scope, keys, seen)
    elif binding.value is not None:
        element: Keys = (None,) if binding.kind == "item" else ()
        yield Origin(binding.value, scope, (*element, *binding.path, *keys)[:MOST_KEYS])


def _of_parameter(analysis: Analysis, name: str, scope: Scope, keys: Keys) -> Iterator[Origin]:
    """Yield what calls, and starts of processes, give for a parameter, and its default where one gives nothing."""
    function = scope.node
    assert isinstance(function, FUNCTIONS)
    names, sites = given_parameters(scope), analysis.callers(function)
    if name not in names:
        yield from (found for site in sites if keys for found in _of_rest(site, name, scope, keys))
        return
    given = {site: argument_for(site.call, names, name) for site in sites}
    yield from (Origin(value, site.scope, keys) for site, value in given.items() if value is not None)
    for site in (site for site, value in given.items() if value is None):
        options = [keyword.value for keyword in site.call.keywords if keyword.arg is None]
        spread = [part.value for part in site.call.args if isinstance(part, ast.Starred)]
        yield from (Origin(part, site.scope, (name, *keys)[:MOST_KEYS]) for part in options)
        yield from (Origin(part, site.scope, (None, *keys)[:MOST_KEYS]) for part in spread)
    started = analysis.spawned.given(scope, name)
    yield from [Origin(*started, keys)] if started is not None else []
    default = default_of(function, name)
    if default is not None and (not given or None in given.values()):
        yield Origin(default, scope.parent or scope, keys)


def _of_rest(site: CallSite, name: str, scope: Scope, keys: Keys) -> Iterator[Origin]:
    """Yield the entries of `*arguments`, or of `**options`, that a call gives."""
    given = scope.node.args  # type: ignore[union-attr]
    if given.vararg is not None and name == given.vararg.arg:
        rest = site.call.args[len(given_parameters(scope)) - len(given.kwonlyargs) :]
        yield from entries(Origin(ast.Tuple(rest, ast.Load()), site.scope, keys))
    elif given.kwarg is not None and name == given.kwarg.arg:
        found = [keyword for keyword in site.call.keywords if may_be(keyword.arg, keys[0])]
        yield from (Origin(part.value, site.scope, keys[1:] if part.arg else keys) for part in found)


def _imported(analysis: Analysis, binding: Binding, scope: Scope, keys: Keys, seen: Seen) -> Iterator[Origin]:
    path = analysis.modules.find(binding.dotted, binding.level, scope.source)
    source = analysis.modules.sources.get(path) if path else None
    if source is not None and binding.member:
        yield from _of_module(analysis, binding.member, analysis.module_scopes[source], keys, seen)


def _of_module(analysis: Analysis, name: str, module: Scope, keys: Keys, seen: Seen = frozenset()) -> Iterator[Origin]:
    if (module, name) in seen:
        return  # a package that imports its own submodule: `from package import part`
    yield from (Origin(*place, keys) for place in set_from_outside(analysis, module, name))
    for binding in module.bindings.get(name, []):
        yield from _of_binding(analysis, binding, module, keys, seen | {(module, name)})


def _put_in(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    """Yield what is put into a container under the key that is asked for."""
    keys = origin.keys
    for stored in stored_in(analysis, origin.node, origin.scope) if keys else ():  # type: ignore[arg-type]
        if stored.is_spread:
            yield Origin(stored.value, stored.scope, keys if isinstance(keys[0], str) else (None, *keys[1:]))
        elif may_be(stored.key, keys[0]):
            yield Origin(stored.value, stored.scope, keys[1:])


def _of_attribute(analysis: Analysis, node: ast.Attribute, origin: Origin) -> Iterator[Origin]:
    scope, keys = origin.scope, origin.keys
    for binding, where in bindings_of(analysis, node, scope):
        yield from _of_binding(analysis, binding, where, keys)
    yield from _put_in(analysis, origin)
    for value in analysis.evaluate(node.value, scope):
        if isinstance(value, LocalModule):
            yield from _of_module(analysis, node.attr, value.scope, keys)
        elif isinstance(value, Instance):
            yield from (Origin(*place, keys) for place in set_from_outside(analysis, value.scope, node.attr))
            yield from (Origin(*change, keys) for change in changes_of(analysis, value.scope, node.attr))
            method = analysis.classes.method(value.scope, node.attr)
            if method is not None and is_property(method.node):
                yield from (Origin(part, method.scope, keys) for part in returns_of(method.node))


def _of_call(analysis: Analysis, node: ast.Call, origin: Origin) -> Iterator[Origin]:
    functions = functions_run(analysis, node, origin.scope)
    for function in functions:
        yield from (Origin(value, function.scope, origin.keys) for value in returns_of(function.node))
        yield from _yielded(function, origin.keys)
    if functions:
        return
    names = analysis.called(node, origin.scope)
    if node.args and names & (WITH_ENTRIES | set(analysis.library.same_functions)):
        yield origin.to(node.args[0])
    elif names & {"enumerate", "zip", "next", "dict"}:
        yield from _of_builtin(node, names, origin)
    elif isinstance(node.func, ast.Attribute):
        yield from _of_method(analysis, node, node.func, origin)


def _yielded(function: LocalFunction, keys: Keys) -> Iterator[Origin]:
    """Yield what a generator of the project gives, one by one."""
    for node in own_nodes(function.node) if keys else ():
        if isinstance(node, ast.Yield) and node.value is not None:
            yield Origin(node.value, function.scope, keys[1:])
        elif isinstance(node, ast.YieldFrom):
            yield Origin(node.value, function.scope, keys)


def _of_builtin(node: ast.Call, names: set[str], origin: Origin) -> Iterator[Origin]:
    keys = origin.keys
    if "next" in names and node.args:
        yield from (origin.to(part, keys=(None, *keys) if part is node.args[0] else keys) for part in node.args[:2])
    elif "enumerate" in names and node.args and keys[1:2] in ((), (1,), (None,)):
        yield origin.to(node.args[0], keys=(*keys[:1], *keys[2:]))
    elif "zip" in names and keys:
        index = keys[1] if len(keys) > 1 else None
        parts = node.args[index : index + 1] if isinstance(index, int) else node.args
        yield from (origin.to(part, keys=(keys[0], *keys[2:])) for part in parts)
    elif "dict" in names and keys:
        yield from (origin.to(part) for part in node.args)
        for keyword in node.keywords:
            if may_be(keyword.arg, keys[0]):
                yield origin.to(keyword.value, keys=keys[1:] if keyword.arg else keys)


def _of_method(analysis: Analysis, node: ast.Call, method: ast.Attribute, origin: Origin) -> Iterator[Origin]:
    keys = origin.keys
    if method.attr in analysis.library.same_methods or method.attr == "copy":
        yield origin.to(method.value)
    elif method.attr in ("get", "pop", "setdefault"):
        yield origin.to(method.value, keys=(literal_key(node.args[0]) if node.args else None, *keys))
        yield from (origin.to(part) for part in node.args[1:2])
    elif method.attr == "values" and keys:
        yield origin.to(method.value, keys=(None, *keys[1:]))
    elif method.attr == "items" and keys and keys[1:2] in ((), (1,), (None,)):
        yield origin.to(method.value, keys=(None, *keys[2:]))
