"""Calls and the functions that they run: arguments, defaults, returned values, assignments to self."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .nodes import children
from .scopes import FUNCTIONS, Binding, Function, Scope, own_nodes, parameters, positions_in

SETTING = (ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.withitem, ast.Call)  # what can set attributes


@dataclass(frozen=True)
class CallSite:
    """A call of a function of the project and the scope it is in.

    `bound`: the calls of functools.partial that have given it arguments before, the innermost one first.
    """

    call: ast.Call
    scope: Scope
    bound: tuple[CallSite, ...] = ()

    def argument(self, names: list[str], name: str) -> tuple[ast.expr, Scope] | None:
        """Return the expression that is given for the parameter `name`, and its scope; None if none can be seen."""
        for keyword, scope in reversed(self.keywords):
            if keyword.arg == name:
                return keyword.value, scope
        given = self.positional
        position = names.index(name) if name in names else len(given)
        before = given[: position + 1]
        is_seen = len(before) > position and not any(isinstance(part, ast.Starred) for part, _ in before)
        return given[position] if is_seen else None

    def spread_for(self, names: list[str], name: str) -> tuple[ast.expr, int | str, Scope] | None:
        """Return `values`, a key and the scope of `values` where the parameter may be given values[key].

        That is so in `f(a, *values)` and in `f(a, **values)`; None where nothing is spread that reaches the
        parameter, or several things are. For a parameter of which `argument` finds nothing.
        """
        given = self.positional
        spread = [number for number, (part, _) in enumerate(given) if isinstance(part, ast.Starred)]
        position = names.index(name) if name in names else -1
        after = len(given) - 1 - spread[0] if spread else 0  # which are for the last parameters, or for earlier ones
        if len(spread) == 1 and spread[0] <= position < len(names) - after:
            part, scope = given[spread[0]]
            return part.value, position - spread[0], scope  # type: ignore[attr-defined]
        options = [(keyword.value, scope) for keyword, scope in self.keywords if keyword.arg is None]
        if spread or len(options) != 1 or not position >= 0:
            return None
        value, scope = options[0]
        return value, name, scope

    @property
    def is_open(self) -> bool:
        """Whether arguments are given that cannot be seen: `*values`, `**options`."""
        is_spread = any(isinstance(part, ast.Starred) for part, _ in self.positional)
        return is_spread or any(keyword.arg is None for keyword, _ in self.keywords)

    @cached_property
    def positional(self) -> list[tuple[ast.expr, Scope]]:
        """Return the arguments without a name, each with its scope."""
        bound = [(part, site.scope) for site in self.bound for part in site.call.args[1:]]
        return [*bound, *((part, self.scope) for part in self.call.args)]

    @cached_property
    def keywords(self) -> list[tuple[ast.keyword, Scope]]:
        """Return the arguments with a name, each with its scope; of two with one name the later one counts."""
        return [(keyword, site.scope) for site in (*self.bound, self) for keyword in site.call.keywords]


def argument_for(call: ast.Call, names: list[str], name: str) -> ast.expr | None:
    """Return the expression that a call gives for the parameter `name`, None if it gives none that can be seen."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if name in names:
        position = names.index(name)
        if position < len(call.args) and not any(isinstance(arg, ast.Starred) for arg in call.args[: position + 1]):
            return call.args[position]
    return None


def default_of(function: Function, name: str) -> ast.expr | None:
    """Return the expression of a parameter's default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    for arg, default in zip(reversed(positional), reversed(given.defaults)):
        if arg.arg == name:
            return default
    for arg, keyword_default in zip(given.kwonlyargs, given.kw_defaults):
        if arg.arg == name:
            return keyword_default
    return None


def returns_of(function: Function) -> list[ast.expr]:
    """Return the expressions that a function returns."""
    known = vars(function)  # many ask, so the list stays with the node
    if "returned" not in known:
        known["returned"] = [function.body] if isinstance(function, ast.Lambda) else _returned(function.body)
    return known["returned"]


def _returned(body: list[ast.stmt]) -> list[ast.expr]:
    found: list[ast.expr] = []
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        elif not isinstance(node, (ast.expr, *FUNCTIONS, ast.ClassDef)):
            waiting.extend(children(node))
    return found


def attribute_assignments(scope: Scope, setters: Collection[str] = frozenset()) -> Iterator[Binding]:
    """Yield the bindings of `self.name` in a method, whatever its first parameter is called.

    `setters`: methods that set an attribute by its name, as `setattr` does: self.add_module("head", head).
    """
    method = scope
    while method.parent is not None and not isinstance(method.parent.node, ast.ClassDef):
        method = method.parent
    names = parameters(method.node) if method.is_function else []  # type: ignore[arg-type]
    if not names or isinstance(scope.node, ast.Lambda):
        return
    for node in own_nodes(scope.node).of(*SETTING):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _attribute_targets(target, names[0], Binding("", node, "value", node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _attribute_targets(node.target, names[0], Binding("", node, "value", node.value))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield from _attribute_targets(node.target, names[0], Binding("", node, "item", node.iter))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _attribute_targets(node.optional_vars, names[0], Binding("", node, "enter", node.context_expr))
        elif isinstance(node, ast.Call):
            yield from _set_by_name(node, names[0], setters)


def _set_by_name(call: ast.Call, receiver: str, setters: Collection[str]) -> Iterator[Binding]:
    """Yield the binding that setattr(self, "name", value), or self.setter("name", value), makes."""
    is_setattr = isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3
    is_setter = isinstance(call.func, ast.Attribute) and call.func.attr in setters and len(call.args) == 2
    if not is_setattr and not is_setter:
        return
    owner = call.args[0] if is_setattr else call.func.value  # type: ignore[attr-defined]
    name, value = call.args[-2:]
    is_own = isinstance(owner, ast.Name) and owner.id == receiver
    if is_own and isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield Binding(name.value, call, "value", value)


def _attribute_targets(target: ast.expr, receiver: str, whole: Binding) -> Iterator[Binding]:
    """Yield the bindings of attributes of the receiver in a target, `whole` being what the target as a whole gets."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == receiver:
        yield replace(whole, name=target.attr)
    elif isinstance(target, ast.Starred):
        rest = replace(whole, kind="other", value=None, rest_of=whole.value)
        yield from _attribute_targets(target.value, receiver, rest)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for index, part in positions_in(target):
            yield from _attribute_targets(part, receiver, replace(whole, path=(*whole.path, index)))


def later_entries(node: ast.Dict | ast.Call, scope: Scope) -> list[tuple[ast.expr, ast.expr]]:
    """Return what `name[key] = value` adds to a dict that was assigned to `name` in the same scope."""
    outer = scope.source.parents.get(node)
    position = outer.elts.index(node) if isinstance(outer, ast.Tuple) else None
    statement = scope.source.parents.get(outer) if position is not None else outer  # type: ignore[arg-type]
    if isinstance(statement, ast.Assign):
        target: ast.expr | None = statement.targets[0]
    else:
        target = statement.target if isinstance(statement, (ast.AnnAssign, ast.NamedExpr)) else None
    if isinstance(target, ast.Tuple) and position is not None and position < len(target.elts):
        target = target.elts[position]
    owner, _ = (scope.find(target.id) or (scope, [])) if isinstance(target, ast.Name) else (scope, [])
    return owner.entries.get(target.id, []) if isinstance(target, ast.Name) else []


def is_property(function: Function) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "property" for part in getattr(function, "decorator_list", []))


def is_classmethod(function: Function) -> bool:
    return any(
        isinstance(part, ast.Name) and part.id == "classmethod" for part in getattr(function, "decorator_list", [])
    )


def body_of(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Lambda):
        return [node.body]
    return list(getattr(node, "body", []))


def is_method(scope: Scope) -> bool:
    """Return whether a function's first parameter is the object, or the class, that it belongs to."""
    node, parent = scope.node, scope.parent
    if parent is None or not isinstance(parent.node, ast.ClassDef):
        return False
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return "staticmethod" not in {part.id for part in node.decorator_list if isinstance(part, ast.Name)}


def is_own(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the object that the method around it is called of."""
    method = method_of(scope)
    return isinstance(node, ast.Name) and is_method(method) and parameters(method.node)[:1] == [node.id]  # type: ignore[arg-type]


def method_of(scope: Scope) -> Scope:
    """Return the method that a function, or one in it, is."""
    while scope.parent is not None and scope.parent.is_function:
        scope = scope.parent
    return scope


def given_parameters(scope: Scope) -> list[str]:
    """Return the parameters of a function that a call gives: without the object that a method belongs to."""
    known = vars(scope)  # many ask, so the list stays with the scope
    if "given_parameters" not in known:
        names = parameters(scope.node)  # type: ignore[arg-type]
        known["given_parameters"] = names[1:] if is_method(scope) else names
    return known["given_parameters"]


def takes(site: CallSite, scope: Scope) -> bool:
    """Return whether a function can be called with these arguments; of what a decorator makes nothing is known."""
    function = scope.node
    if site.is_open or not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return True
    arguments, names = function.args, given_parameters(scope)
    names = [name for name in names if name not in {part.arg for part in arguments.kwonlyargs}]
    number, named = len(site.positional), {keyword.arg for keyword, _ in site.keywords}
    if number > len(names) + is_method(scope) and arguments.vararg is None:
        return False
    required = names[: len(names) - len(arguments.defaults)]
    if arguments.kwarg is None and not named <= {*names, *(part.arg for part in arguments.kwonlyargs)}:
        return False
    return set(required[number:]) <= named


def last_name(node: ast.AST) -> str:
    """Return `rank` of rank, args.rank and hvd.rank(); "" for what has no name."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def without_methods(node: ast.expr, names: Collection[str]) -> ast.expr:
    """Return `x` of x.detach().cpu().data, where `names` are these methods without arguments and attributes."""
    while True:
        inner = node.func if isinstance(node, ast.Call) and not node.args else node
        if not isinstance(inner, ast.Attribute) or inner.attr not in names:
            return node
        node = inner.value
