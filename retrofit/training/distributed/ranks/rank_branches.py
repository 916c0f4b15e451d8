"""Tests and loops by which some ranks leave out what others run.

Two things part ranks: a test for the rank, and a test that depends on a rank's own samples. What all ranks know,
as the epoch, an option or a value that was reduced, parts nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.nodes import COMPREHENSIONS, children
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.training import Project
from retrofit.training.figures.figures import follow, followed

from .rank_guards import side_of_test

LOOPS = (ast.For, ast.AsyncFor, ast.While)
LEAVING = (ast.Continue, ast.Break, ast.Return)
Way = tuple[ast.expr, ast.AST]  # a test or what a loop iterates over, and the node that it decides in


@dataclass(frozen=True)
class RankBranches:
    """The tests of a project by which its ranks part, and the functions that only some of them may enter."""

    project: Project
    tests: frozenset[ast.AST]
    entered: frozenset[Scope]

    def around(self, scope: Scope, node: ast.AST) -> list[ast.AST]:
        """Return what lets some ranks leave a node out, or run it more often, from the inside."""
        trained = {loop for path in self.project.paths for loop, _ in path.loops}  # a step waits for all ranks itself
        ways = [(test, holder) for test, holder in ways_to(scope, node) if holder not in trained]
        found = [holder for test, holder in ways if self.parts(test, scope)]
        loops = [outer for outer in _within(scope, node) if isinstance(outer, LOOPS) and outer not in trained]
        return found + [loop for loop in loops if self._is_left(scope, loop)]

    def by_samples(self, scope: Scope, node: ast.AST) -> list[ast.AST]:
        """Return the tests of a rank's own samples by which it leaves a node out."""
        tests = [test for test, holder in ways_to(scope, node) if not _goes_through(holder, test)]
        return [test for test in tests if test in self.tests]

    def parts(self, test: ast.expr, scope: Scope) -> bool:
        return test in self.tests or bool(side_of_test(self.project.analysis, test, scope))

    def is_entered_by_some(self, scope: Scope) -> bool:
        """Return whether some ranks may leave out a call of a function."""
        calls = call_chains(self.project.analysis, scope.node, scope)[1:]
        return scope in self.entered or any(
            where in self.entered or any(self.parts(test, where) for test, _ in ways_to(where, call))
            for call, where in calls
        )

    def _is_left(self, scope: Scope, loop: ast.AST) -> bool:
        """Return whether some ranks leave a loop earlier than others."""
        return any(self.parts(test, scope) for test in _leaving(scope, loop, loop))


def rank_branches_of(project: Project, together: Collection[ast.AST] = ()) -> RankBranches:
    """Return where ranks part in a project when the values of the nodes `together` are those of all ranks."""
    run = follow(project, together)[1] if together else followed(project)[1]
    return RankBranches(project, frozenset(run.rank_branches), frozenset(run.entered))


def ways_to(scope: Scope, node: ast.AST) -> Iterator[Way]:
    """Yield what decides in a function whether a node is run, and how often, from the inside."""
    inner = node
    for outer in (*_within(scope, node), scope.node):
        if isinstance(inner, ast.stmt):
            block = block_of(scope.source, inner)
            for earlier in block[: block.index(inner)]:
                yield from ((test, earlier) for test in _leaving(scope, earlier, None))
        if outer is scope.node:
            return
        yield from ((test, outer) for test in _deciding(outer, inner))
        inner = outer


def _deciding(outer: ast.AST, inner: ast.AST) -> list[ast.expr]:
    """Return the tests in a node that come before a part of it."""
    if isinstance(outer, (ast.If, ast.IfExp)):
        return [outer.test] if inner is not outer.test else []
    if isinstance(outer, ast.BoolOp):
        return outer.values[: outer.values.index(inner)]  # type: ignore[arg-type]
    if isinstance(outer, ast.Compare):
        return [outer] if inner in outer.comparators[1:] else []
    if isinstance(outer, ast.While):
        return [outer.test] if inner not in outer.orelse else []
    if isinstance(outer, (ast.For, ast.AsyncFor)):
        return [outer.iter] if inner in outer.body else []
    if isinstance(outer, ast.comprehension):
        return [outer.iter, *outer.ifs[: outer.ifs.index(inner)]] if inner in outer.ifs else []  # type: ignore[arg-type]
    if isinstance(outer, COMPREHENSIONS):
        generators = outer.generators
        before = generators[: generators.index(inner)] if inner in generators else generators
        return [test for generator in before for test in (generator.iter, *generator.ifs)]
    return []


def _goes_through(holder: ast.AST, test: ast.expr) -> bool:
    """Return whether a loop, or a comprehension, goes through an expression, and does not test it."""
    is_iterated = isinstance(holder, COMPREHENSIONS) and any(part.iter is test for part in holder.generators)
    return is_iterated or isinstance(holder, (ast.For, ast.AsyncFor))


def _leaving(scope: Scope, statement: ast.AST, loop: ast.AST | None) -> Iterator[ast.expr]:
    """Yield the tests under which a statement leaves its block early: with `loop`, that loop, else the block's own.

    An error on one rank ends all of them, so `raise` does not count.
    """
    for node in _own_parts(statement):
        if not isinstance(node, LEAVING):
            continue
        around = list(scope.source.ancestors(node))
        around = [*around[: around.index(statement)], statement] if statement in around else [node]
        target = next((outer for outer in around if isinstance(outer, LOOPS)), None)
        is_inner = target is not None and not isinstance(node, ast.Return)
        if (is_inner and target is not loop) or (loop is not None and isinstance(node, ast.Continue)):
            continue
        inner: ast.AST = node
        for outer in around:
            if outer is not loop:
                yield from _deciding(outer, inner)
            inner = outer


def _own_parts(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, without those of functions and classes in it."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting += [part for part in children(node) if not isinstance(part, ast.expr)]


def _within(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            return
        yield outer
