"""Reaching definitions: the bindings of a name that can have given it its value at one place."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter

from ..edits import block_of
from ..nodes import walk
from ..scopes import Binding, Scope, outside_comprehensions, place_of
from ..values.inference import Analysis
from ..values.kinds import Values

LOOPS = (ast.For, ast.AsyncFor)
ALL_LOOPS = (*LOOPS, ast.While)


def live_bindings(name: ast.Name, scope: Scope) -> tuple[Scope, list[Binding]]:
    """Return the bindings of a name that can count where it is read, and the scope they are in.

    Of a straight line of assignments that is the last one, with what changes it afterwards, also later in a loop around
    the place that the last one comes before; after an `if` and its `else` that both assign it, the last one of each; in
    a loop that gives it its values, the loop and what changes it there before the place; elsewhere all of them, in a
    function those before the place, and in loops around it.
    """
    if name not in scope.live:
        scope.live[name] = _live_bindings(name, scope)
    return scope.live[name]


def _live_bindings(name: ast.Name, scope: Scope) -> tuple[Scope, list[Binding]]:
    owner, bindings = scope.find(name.id) or (scope, [])
    outside = outside_comprehensions(bindings)
    if len(outside) < len(bindings):
        own = [b for b in bindings if b not in outside and _is_element(b.node, name, scope)]
        if own:
            return owner, own[-1:]
        bindings = outside
    is_made_up = name not in scope.source.parents  # of a text that is parsed on its own
    if is_made_up or any((binding.elsewhere or owner) is not scope for binding in bindings):
        return owner, bindings
    statement = scope.source.statement(name)
    around = {statement, *scope.source.ancestors(statement)}
    here = place_of(statement)
    before = sorted([binding for binding in bindings if binding.place < here], key=attrgetter("place"))
    last = next((i for i in reversed(range(len(before))) if _settles(before[i], scope, around)), None)
    before = before[last or 0 :]
    dead = set(_replaced(before, scope, around))
    before = [binding for binding in before if binding not in dead]
    first = _first_of_arms(before, scope, around)
    if last is None and not first:
        loops = [outer for outer in around if isinstance(outer, ALL_LOOPS)]
        later = [b for b in bindings if any(_is_in(b.node, loop, scope) for loop in loops)]
        can_count = {*before, *later} if before and scope.is_function else set(bindings)
        return owner, [binding for binding in bindings if binding in can_count and binding not in dead]
    repeated = _repeated(statement, before[first].node, scope)
    again = [b for b in bindings if _is_in(b.node, repeated, scope)] if repeated is not None else []
    again = [binding for binding in again if binding not in dead]
    return owner, list(dict.fromkeys([*before[first:], *again]))


def values_here(analysis: Analysis, node: ast.expr, scope: Scope) -> Values:
    """Return what an expression can be: a name by the bindings that can count where it is read."""
    if not isinstance(node, ast.Name) or node.id not in scope.bindings:
        return analysis.evaluate(node, scope)
    owner, live = live_bindings(node, scope)
    return analysis.of_bindings(live, owner) or analysis.evaluate(node, scope)


def _replaced(before: list[Binding], scope: Scope, around: set[ast.AST]) -> Iterator[Binding]:
    """Yield the bindings that an assignment later in the same block replaces, whatever leads to the place."""
    for binding in before:
        if not _assigns(binding):
            continue
        node = scope.source.statement(binding.node)
        if any(isinstance(outer, ast.Try) for outer in _ancestors_within(node, scope, around)):
            continue
        block = block_of(scope.source, node)
        earlier = {part: number for number, part in enumerate(block[: block.index(node)])}
        for other in before if earlier else ():
            number = next((earlier[n] for n in (other.node, *scope.source.ancestors(other.node)) if n in earlier), None)
            if number is not None and not _leaves_loop(block[number : len(earlier)]):
                yield other


def _first_of_arms(before: list[Binding], scope: Scope, around: set[ast.AST]) -> int:
    """Return the number of the first binding in the last statement before a place that assigns it in all its arms."""
    assigning = {scope.source.statement(binding.node) for binding in before if _assigns(binding)}
    for binding in reversed(before):
        outermost = _statement_among(binding.node, scope, around)
        if outermost is None or outermost is scope.source.statement(binding.node):
            continue
        if _always_runs_one(outermost, assigning):
            return next(i for i, other in enumerate(before) if _is_in(other.node, outermost, scope))
    return 0


def _statement_among(node: ast.AST, scope: Scope, around: set[ast.AST]) -> ast.stmt | None:
    """Return the statement with `node` in it that is in one of the blocks around a place."""
    for outer in (node, *scope.source.ancestors(node)):
        if isinstance(outer, ast.stmt) and not around.isdisjoint(block_of(scope.source, outer)):
            return outer
    return None


def _always_runs_one(statement: ast.stmt, wanted: Collection[ast.AST]) -> bool:
    """Return whether what comes after a statement runs after one of the wanted ones in it."""
    if statement in wanted:
        return True
    if isinstance(statement, ast.If):
        return all(_has_one(arm, wanted) for arm in (statement.body, statement.orelse))
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _has_one(statement.body, wanted)
    return False


def _has_one(block: list[ast.stmt], wanted: Collection[ast.AST]) -> bool:
    """Return whether one of the wanted statements runs in a block, or nothing after it does."""
    leaves = bool(block) and isinstance(block[-1], (ast.Return, ast.Raise))
    return leaves or any(_always_runs_one(statement, wanted) for statement in block)


def _leaves_loop(statements: Iterable[ast.stmt]) -> bool:
    return any(isinstance(n, (ast.Break, ast.Continue)) for statement in statements for n in walk(statement))


def _ancestors_within(node: ast.AST, scope: Scope, around: set[ast.AST]) -> Iterator[ast.AST]:
    """Yield what is around a node and not around a place."""
    for outer in scope.source.ancestors(node):
        if outer in around or outer is scope.node:
            return
        yield outer


def _repeated(statement: ast.stmt, first: ast.AST, scope: Scope) -> ast.AST | None:
    """Return the outermost loop that runs a statement again after another one, which comes before the loop."""
    around_first = {first, *scope.source.ancestors(first)}
    around = [statement] if isinstance(statement, ast.While) else []
    found = None
    for outer in (*around, *scope.source.ancestors(statement)):
        if outer is scope.node or outer in around_first:
            break
        if isinstance(outer, ALL_LOOPS):
            found = outer
    return found


def _is_in(node: ast.AST, outer: ast.AST, scope: Scope) -> bool:
    return outer in (node, *scope.source.ancestors(node))


def _is_element(generator: ast.AST, name: ast.Name, scope: Scope) -> bool:
    """Return whether a name is in a comprehension with this generator, and not in what that goes through first."""
    around = [name, *scope.source.ancestors(name)]
    comprehension = scope.source.parents[generator]
    if comprehension not in around:
        return False
    first = comprehension.generators[0]  # type: ignore[attr-defined]
    return first not in around or first.iter not in around


def _settles(binding: Binding, scope: Scope, around: set[ast.AST]) -> bool:
    """Return whether an assignment is always made on the way: in one of the blocks around, or by a loop around."""
    if isinstance(binding.node, LOOPS):
        return not around.isdisjoint(binding.node.body)
    return _assigns(binding) and not around.isdisjoint(block_of(scope.source, scope.source.statement(binding.node)))


def _assigns(binding: Binding) -> bool:
    """Return whether a statement gives a name a value that has nothing of those before."""
    node = binding.node
    if binding.kind == "enter":  # with bar(values) as name
        return True
    return binding.kind == "value" and isinstance(node, ast.stmt) and not isinstance(node, ast.AugAssign)
