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

from ..calls import CallSite, is_property, returns_of, takes
from ..memory import answered_once
from ..python_api import MAPPINGS
from ..scopes import Binding, Scope, own_nodes
from ..values.inference import Analysis
from ..values.kinds import Display, Instance, LocalClass, LocalFunction, LocalModule, Result, Value
from ..values.mapped import MAP, applied
from .bindings import bindings_of
from .calls.parameters import given_for, has_unknown_caller
from .keys import Key, Keys, before_slice, has_no_entry, keys_inside, later, may_be
from .reaching_definitions import live_bindings
from .stored import changes_of, literal_key, set_from_outside, stored_in

T = TypeVar("T", bound=Hashable)
Part = Union[ast.expr, ast.AugAssign]
Seen = frozenset[tuple[Scope, str]]  # names of modules that imports lead through
MOST_ORIGINS = 10_000  # of one value: a model of 4,000 lines has searches of more than 3,000
MOST_KEYS = 4  # of containers in containers
IN_ORDER = frozenset({"list", "tuple", "iter", "collections.deque"})  # hold what their first argument gives
IN_OTHER_ORDER = frozenset({"set", "frozenset", "sorted", "reversed"})
PASSING_ON = IN_ORDER | IN_OTHER_ORDER | {"enumerate", "zip", "dict"}  # functions of Python: entries of their arguments


class NotFollowed(ast.expr_context):
    """Of a name that is the end of a search: what one of its bindings gives it is not known."""


class Origin(NamedTuple):
    """An expression that a value can come from, or a statement `x += y` that changes it, with its scope.

    `keys`: of which entry of the containers it is the value, outermost first; None for any entry, ELEMENT for any that
    an iteration gives.
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
        found = () if has_no_entry(origin.node, origin.keys) else through(origin)
        return sources(analysis, origin) if found is None else found

    return closure(starts, step)


def closure(starts: Iterable[T], step: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield all that steps lead to from `starts`, each once and what is near first."""
    waiting = deque(starts)
    most = MOST_ORIGINS * len(waiting)
    seen: set[T] = set()
    while waiting and len(seen) < most:
        item = waiting.popleft()
        if item not in seen:
            seen.add(item)
            yield item
            waiting += step(item)


def sources(analysis: Analysis, origin: Origin) -> tuple[Origin, ...]:
    """Return the expressions, one step before, that an expression can have its value from.

    A name that is also bound by something else (an import of a library, a def, `except as`, a call that is not seen)
    has a name without sources among them, the same one, in the context NotFollowed.
    """
    known: dict[Origin, tuple[Origin, ...]] = analysis.fact("sources", dict)
    if origin not in known:
        known[origin] = tuple(_sources(analysis, origin))
    return known[origin]


def _sources(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    node, scope, keys = origin
    if isinstance(node, ast.Name):
        yield from _of_name(analysis, node, origin) if is_followed(node) else ()
    elif isinstance(node, ast.Attribute):
        yield from _of_attribute(analysis, node, origin)
    elif isinstance(node, ast.Call):
        yield from _of_call(analysis, node, origin)
    elif isinstance(node, ast.Subscript):
        given = analysis.containers.given_as_keyword(node, scope)
        yield from (origin.to(*place) for place in given)
        inner = (
            before_slice(node.slice, keys) if isinstance(node.slice, ast.Slice) else (literal_key(node.slice), *keys)
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


def is_followed(node: Part) -> bool:
    """Return whether the value of an expression is followed: not of a name that a search ends with."""
    return not isinstance(node, ast.Name) or not isinstance(node.ctx, NotFollowed)


def _of_name(analysis: Analysis, node: ast.Name, origin: Origin) -> Iterator[Origin]:
    owner, bindings = live_bindings(node, origin.scope)
    yield from (found for binding in bindings for found in _of_binding(analysis, binding, owner, origin.keys))
    if owner.parent is None or not bindings:
        yield from _set_from_outside(analysis, owner.module, node.id, origin.keys)
        yield from _of_star(analysis, node.id, owner.module, origin.keys)
    yield from _put_in(analysis, origin)


def entries(origin: Origin) -> Iterator[Origin]:
    """Yield the entries of a written container that are asked for, all of them where no key is."""
    node, key, rest = origin.node, *(origin.keys[:1] or (None,)), origin.keys[1:]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        yield from (
            origin.to(part.value, keys=(Key.ELEMENT, *rest))
            if isinstance(part, ast.Starred)
            else origin.to(part, keys=rest)
            for part in _at(node, key)
        )
    elif isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values):
            if name is None:
                yield origin.to(value)
            elif key is Key.ELEMENT:
                yield origin.to(name, keys=rest)
            elif may_be(literal_key(name), key):
                yield origin.to(value, keys=rest)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield origin.to(node.elt, keys=rest)
    elif (parts := concatenation(node)) is not None and isinstance(key, int) and key >= 0:
        first, others = parts
        number = len(first.elts)
        yield origin.to(first) if key < number else origin.to(others, keys=(key - number, *rest))
    elif isinstance(node, ast.DictComp):
        yield origin.to(node.key if key is Key.ELEMENT else node.value, keys=rest)


def concatenation(node: Part) -> tuple[ast.Tuple | ast.List, ast.expr] | None:
    """Return the display and what is put after its entries in (loss,) + outputs, None for another expression."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    is_fixed = isinstance(node.left, (ast.Tuple, ast.List)) and not any(
        isinstance(part, ast.Starred) for part in node.left.elts
    )
    return (node.left, node.right) if is_fixed else None  # type: ignore[return-value]


def _at(node: ast.Tuple | ast.List | ast.Set, key: object) -> list[ast.expr]:
    """Return the parts of a display that an index can mean: those from a `*part` on may be at any later index."""
    parts = node.elts
    if not isinstance(key, int) or isinstance(node, ast.Set):
        return parts
    fixed = next((i for i, part in enumerate(parts) if isinstance(part, ast.Starred)), len(parts))
    if fixed < len(parts):
        return [parts[key]] if 0 <= key < fixed else parts[fixed:] if key >= 0 else parts
    return [parts[key]] if -len(parts) <= key < len(parts) else []


@answered_once
def functions_run(analysis: Analysis, node: ast.Call, scope: Scope) -> list[LocalFunction]:
    """Return the functions of the project whose result a call is: no constructor."""
    found: list[LocalFunction | None] = []
    has_partial = False
    for value in analysis.evaluate(node.func, scope):
        is_partial = isinstance(value, Result) and value.is_partial
        has_partial |= is_partial
        inner = analysis.evaluate(value.call.args[0], value.scope) if is_partial else [value]  # type: ignore[union-attr]
        for function in inner:
            if isinstance(function, LocalFunction):
                found.append(function)
            elif isinstance(function, Instance):
                found += [analysis.classes.method(function.scope, name) for name in ("__call__", "forward")]
    functions = [function for function in found if function]
    site = CallSite(node, scope)
    fitting = [f for f in functions if takes(site, f.scope)] if not has_partial else []
    return fitting or functions


def _of_binding(
    analysis: Analysis, binding: Binding, scope: Scope, keys: Keys, seen: Seen = frozenset()
) -> Iterator[Origin]:
    scope = binding.elsewhere or scope
    if isinstance(binding.node, ast.AugAssign):
        yield Origin(binding.node, scope, keys)
    elif binding.kind == "parameter":
        given = given_for(analysis, binding.name, scope, keys)
        found = [Origin(node, where, inner[:MOST_KEYS]) for node, where, inner in given]
        yield from found
        if not found or has_unknown_caller(analysis, scope):
            yield _not_followed(analysis, binding, scope, keys)
    elif binding.kind == "import":
        yield from _imported(analysis, binding, scope, keys, seen)
    elif binding.rest_of is not None:
        yield _rest_of(binding, scope, keys)
    elif binding.value is not None:
        yield Origin(binding.value, scope, (*_iterated(binding), *binding.path, *keys)[:MOST_KEYS])
    else:
        yield _not_followed(analysis, binding, scope, keys)


def _iterated(binding: Binding) -> Keys:
    """Return the key of what a binding takes apart, in what its statement says: an element, of `for x in values`."""
    return (Key.ELEMENT,) if isinstance(binding.node, (ast.For, ast.AsyncFor, ast.comprehension)) else ()


def _rest_of(binding: Binding, scope: Scope, keys: Keys) -> Origin:
    """Return where an entry of `rest` in `first, *rest = values` comes from."""
    assert binding.rest_of is not None
    *path, first = binding.path
    entry = (later(keys[0], first), *keys[1:]) if keys else ()
    return Origin(binding.rest_of, scope, (*_iterated(binding), *path, *entry)[:MOST_KEYS])


def _not_followed(analysis: Analysis, binding: Binding, scope: Scope, keys: Keys) -> Origin:
    """Return a name without sources for a binding that gives it something unknown."""
    known: dict[tuple[Binding, Scope], ast.Name] = analysis.fact("names not followed", dict)
    if (binding, scope) not in known:
        line, column = binding.place
        place = {"lineno": line, "col_offset": column, "end_lineno": line, "end_col_offset": column}
        name = known[binding, scope] = ast.Name(binding.name, NotFollowed(), **place)
        scope.source.parents[name] = binding.node
    return Origin(known[binding, scope], scope, keys)


def _imported(analysis: Analysis, binding: Binding, scope: Scope, keys: Keys, seen: Seen) -> Iterator[Origin]:
    path = analysis.modules.find(binding.dotted, binding.level, scope.source)
    source = analysis.modules.sources.get(path) if path else None
    if source is None or not binding.member:
        yield _not_followed(analysis, binding, scope, keys)
        return
    module = analysis.module_scopes[source]
    found = list(_of_module(analysis, binding.member, module, keys, seen))
    yield from found
    if not found and (module, binding.member) not in seen:
        yield _not_followed(analysis, binding, scope, keys)


def _of_module(analysis: Analysis, name: str, module: Scope, keys: Keys, seen: Seen = frozenset()) -> Iterator[Origin]:
    if (module, name) in seen:
        return  # a package that imports its own submodule: `from package import part`
    yield from _set_from_outside(analysis, module, name, keys)
    for binding in module.bindings.get(name, []):
        yield from _of_binding(analysis, binding, module, keys, seen | {(module, name)})
    yield from _of_star(analysis, name, module, keys, seen | {(module, name)})


def _of_star(analysis: Analysis, name: str, module: Scope, keys: Keys, seen: Seen = frozenset()) -> Iterator[Origin]:
    """Yield what a module has under a name by `from other import *`."""
    for binding in module.star_imports:
        path = analysis.modules.find(binding.dotted, binding.level, module.source)
        source = analysis.modules.sources.get(path) if path else None
        if source is not None:
            yield from _of_module(analysis, name, analysis.module_scopes[source], keys, seen)


def _set_from_outside(analysis: Analysis, owner: Scope, name: str, keys: Keys) -> Iterator[Origin]:
    for value, scope, path in set_from_outside(analysis, owner, name):
        yield Origin(value, scope, (*path, *keys)[:MOST_KEYS])


def _put_in(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    """Yield what is put into a container under the key that is asked for."""
    for stored in stored_in(analysis, origin.node, origin.scope) if origin.keys else ():  # type: ignore[arg-type]
        keys = keys_inside(stored, origin.keys)
        if keys is not None:
            yield Origin(stored.value, stored.scope, keys)


def _of_attribute(analysis: Analysis, node: ast.Attribute, origin: Origin) -> Iterator[Origin]:
    scope, keys = origin.scope, origin.keys
    for binding, where in bindings_of(analysis, node, scope):
        yield from _of_binding(analysis, binding, where, keys)
    yield from _put_in(analysis, origin)
    for value in analysis.evaluate(node.value, scope):
        if isinstance(value, LocalModule):
            yield from _of_module(analysis, node.attr, value.scope, keys)
        elif isinstance(value, (Instance, LocalClass)):
            yield from _set_from_outside(analysis, value.scope, node.attr, keys)
            yield from (Origin(*change, keys) for change in changes_of(analysis, value.scope, node.attr))
            method = analysis.classes.method(value.scope, node.attr)
            if method is not None and is_property(method.node):
                yield from (Origin(part, method.scope, keys) for part in returns_of(method.node))


def _of_call(analysis: Analysis, node: ast.Call, origin: Origin) -> Iterator[Origin]:
    functions = functions_run(analysis, node, origin.scope)
    for function in functions:
        yield from (Origin(value, function.scope, origin.keys) for value in returns_of(function.node))
        yield from yielded(function.scope, origin.keys) if origin.keys else ()
    if functions:
        return
    names = analysis.called(node, origin.scope)
    if node.args and names & IN_OTHER_ORDER:
        yield origin.to(node.args[0], keys=(Key.ELEMENT, *origin.keys[1:]) if origin.keys else ())
    elif node.args and names & (IN_ORDER | set(analysis.library.same_functions)):
        yield origin.to(node.args[0], keys=_in_iteration(analysis, node.args[0], origin))
    elif MAP in names and origin.keys and (made := applied(node, origin.scope)) is not None:
        yield origin.to(made, keys=origin.keys[1:])
    elif names & ({"enumerate", "zip", "next"} | MAPPINGS):
        yield from _of_builtin(analysis, node, names, origin)
    elif isinstance(node.func, ast.Attribute):
        yield from _of_method(analysis, node, node.func, origin)


def yielded(scope: Scope, keys: Keys = ()) -> Iterator[Origin]:
    """Yield what a generator of the project gives, one by one."""
    for node in own_nodes(scope.node).of(ast.Yield, ast.YieldFrom):
        if isinstance(node, ast.YieldFrom):
            yield Origin(node.value, scope, (Key.ELEMENT, *keys[1:]))
        elif node.value is not None:
            yield Origin(node.value, scope, keys[1:])


def _in_iteration(analysis: Analysis, node: ast.expr, origin: Origin) -> Keys:
    """Return the keys of a value in what is gone through for it: the index in a list, not that in a dict."""
    if not origin.keys:
        return ()
    key, rest = origin.keys[0], origin.keys[1:]
    is_index = isinstance(key, int) and not any(map(_is_mapping, analysis.evaluate(node, origin.scope)))
    return (key if is_index else Key.ELEMENT, *rest)


def _is_mapping(value: Value) -> bool:
    if isinstance(value, Display):
        return isinstance(value.node, (ast.Dict, ast.DictComp))
    return isinstance(value, Result) and value.builder in MAPPINGS


def _of_builtin(analysis: Analysis, node: ast.Call, names: set[str], origin: Origin) -> Iterator[Origin]:
    keys = origin.keys
    if "next" in names and node.args:
        inner = (Key.ELEMENT, *keys)
        yield from (origin.to(part, keys=inner if part is node.args[0] else keys) for part in node.args[:2])
    elif "enumerate" in names and node.args and keys[1:2] in ((), (1,), (-1,), (None,)):
        inner = _in_iteration(analysis, node.args[0], origin)
        yield origin.to(node.args[0], keys=(*inner[:1], *inner[2:]))
    elif "zip" in names and keys:
        yield from _of_zip(analysis, node, origin)
    elif names & MAPPINGS and keys:
        yield from (origin.to(part) for part in node.args["collections.defaultdict" in names :])
        for keyword in node.keywords:
            if keyword.arg is None or (keys[0] is not Key.ELEMENT and may_be(keyword.arg, keys[0])):
                yield origin.to(keyword.value, keys=keys[1:] if keyword.arg else keys)


def _of_zip(analysis: Analysis, node: ast.Call, origin: Origin) -> Iterator[Origin]:
    """Yield `a[i]` for zip(a, b)[i][0], and `pairs[0][i]` for zip(*pairs)[i][0]."""
    column = origin.keys[1] if len(origin.keys) > 1 else None
    is_spread = any(isinstance(part, ast.Starred) for part in node.args)
    is_known = isinstance(column, int) and -len(node.args) <= column < len(node.args)
    for part in [node.args[column]] if is_known and not is_spread else node.args:  # type: ignore[call-overload]
        if isinstance(part, ast.Starred):
            row = column if len(node.args) == 1 and column is not None else Key.ELEMENT
            yield origin.to(part.value, keys=(row, *origin.keys[:1], *origin.keys[2:]))
        else:
            inner = _in_iteration(analysis, part, origin)
            yield origin.to(part, keys=(*inner[:1], *inner[2:]))


def _of_method(analysis: Analysis, node: ast.Call, method: ast.Attribute, origin: Origin) -> Iterator[Origin]:
    keys = origin.keys
    if method.attr in analysis.library.same_methods or method.attr == "copy":
        yield origin.to(method.value)
    elif method.attr in ("get", "pop", "setdefault"):
        yield origin.to(method.value, keys=(literal_key(node.args[0]) if node.args else None, *keys))
        yield from (origin.to(part) for part in node.args[1:2])
    elif method.attr in ("keys", "values") and keys:
        yield origin.to(method.value, keys=(Key.ELEMENT if method.attr == "keys" else None, *keys[1:]))
    elif method.attr == "items" and keys:
        if keys[1:2] != (0,):
            yield origin.to(method.value, keys=(None, *keys[2:]))
        if keys[1:2] in ((0,), (None,)):
            yield origin.to(method.value, keys=(Key.ELEMENT, *keys[2:]))
