"""Iterables that the project's own generators and iterators go through, and hand on one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls import CallSite, given_parameters, is_method, returns_of
from ..nodes import walk
from ..scopes import FUNCTIONS, Function, Scope, own_nodes, parameters
from .inference import Analysis
from .kinds import Instance, LocalClass, LocalFunction

Place = tuple[ast.expr, Scope]


def viewed(analysis: Analysis, call: ast.Call, scope: Scope) -> list[Place]:
    """Return what a call hands on one by one: of a generator, or of the iterator that it makes, what that goes through.

    Parameters lead to the arguments of this call; other names are given with the scope that they are in.
    """
    found: list[Place] = []
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, LocalFunction):
            site = analysis.site_of(call, scope, value)
            found += [_argument(analysis, site, place) for place in gone_through(value.node, value.scope)]
        elif isinstance(value, LocalClass):
            found += _of_object(analysis, Instance(value.scope, call), scope)
    return list(dict.fromkeys(found))


def unchanged(analysis: Analysis, call: ast.Call, scope: Scope) -> Place | None:
    """Return what a call of a generator gives one by one as it is: `for y in x: yield y`, `yield from x`."""
    functions = analysis.functions_called(call, scope)
    function = functions[0] if len(functions) == 1 else None
    yields = own_nodes(function.node).of(ast.Yield, ast.YieldFrom) if function else []
    if function is None or len(yields) != 1:
        return None
    places = gone_through(function.node, function.scope)
    if len(places) != 1 or not (isinstance(yields[0], ast.YieldFrom) or _is_element(yields[0].value, *places[0])):
        return None
    return _argument(analysis, analysis.site_of(call, scope, function), places[0])


def _is_element(value: ast.expr | None, drawn: ast.expr, scope: Scope) -> bool:
    """Return whether a value is what a loop draws, and nothing else."""
    loop = scope.source.parents[drawn]
    if not isinstance(value, ast.Name) or not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return False
    return value.id == loop.target.id and len(scope.bindings.get(value.id, [])) == 1


def gone_through(function: Function, scope: Scope) -> list[Place]:
    """Return what a generator goes through: `x` of `for y in x: yield f(y)`, of `yield from x` and of next(x)."""
    found = [(node, scope) for node in own_nodes(function).of(ast.Yield, ast.YieldFrom)]
    return list(dict.fromkeys(place for node, _ in found for place in _given_out(node, scope, function)))


def _given_out(node: ast.Yield | ast.YieldFrom, scope: Scope, function: Function) -> Iterator[Place]:
    if isinstance(node, ast.YieldFrom):
        yield node.value, scope
        return
    for outer in scope.source.ancestors(node):
        if outer is function:
            return
        if isinstance(outer, (ast.For, ast.AsyncFor)):
            yield outer.iter, scope
        elif isinstance(outer, ast.While):
            yield from _next_in(outer, scope)


def _next_in(node: ast.AST, scope: Scope) -> Iterator[Place]:
    for part in walk(node):
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "next" and part.args:
            yield part.args[0], scope


def _of_object(analysis: Analysis, value: Instance, scope: Scope) -> Iterator[Place]:
    """Yield what an iteration over an object of the project goes through."""
    iterates = analysis.classes.method(value.scope, "__iter__")
    if iterates is None or value.call is None:
        return
    found = gone_through(iterates.node, iterates.scope)
    returned = returns_of(iterates.node)
    found += [(part.args[0], iterates.scope) for part in returned if _is_iter(part)]  # type: ignore[attr-defined]
    step = analysis.classes.method(value.scope, "__next__")
    if step is not None and any(isinstance(part, ast.Name) for part in returned):  # return self
        found += [*_next_in(step.node, step.scope)]
    for place in found:
        yield from _given_to_object(analysis, place, value.call, scope)


def _is_iter(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "iter" and bool(node.args)


def _given_to_object(analysis: Analysis, place: Place, call: ast.Call, scope: Scope) -> Iterator[Place]:
    """Yield what an attribute was set to when the object was made: the argument of the call that made it."""
    node, method = place
    owner = method.enclosing_class()
    receiver = parameters(method.node)[:1] if isinstance(method.node, FUNCTIONS) and is_method(method) else []
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and [node.value.id] == receiver
    bindings = analysis.classes.attribute_bindings(owner, node.attr) if is_own and owner else []  # type: ignore[attr-defined]
    for binding, where in bindings:
        value = binding.value.args[0] if binding.value is not None and _is_iter(binding.value) else binding.value  # type: ignore[attr-defined]
        if value is not None and not isinstance(value, ast.Constant) and not binding.path:
            yield _argument(analysis, CallSite(call, scope), (value, where))
    if not bindings:
        yield node, method


def _argument(analysis: Analysis, site: CallSite, place: Place) -> Place:
    """Return what a call gives for a parameter of the function that it runs, any other expression as it is.

    The same for an iterator that the function makes of a parameter: `batches` of `batches = iter(loader)`.
    """
    node, scope = place
    if not isinstance(node, ast.Name) or not isinstance(scope.node, FUNCTIONS):
        return place
    iterated = _iterated(node, scope)
    if iterated is not None:
        inner = _argument(analysis, site, (iterated, scope))
        return place if inner[0] is iterated else inner
    bindings = scope.bindings.get(node.id, [])
    if not any(binding.kind == "parameter" for binding in bindings):
        return place
    return site.argument(given_parameters(scope), node.id) or place


def _iterated(node: ast.Name, scope: Scope) -> ast.Name | None:
    """Return `x` of a name that is set to iter(x) alone, once or again."""
    values = [binding.value for binding in scope.bindings.get(node.id, [])]
    names = [value.args[0] for value in values if value is not None and _is_iter(value)]  # type: ignore[attr-defined]
    found = {name.id: name for name in names if isinstance(name, ast.Name) and name.id != node.id}
    return next(iter(found.values())) if len(found) == 1 and len(names) == len(values) else None
