"""Names that a script makes of what lies in a folder: the next number of a run, `runs/exp3`.

A process that looks a moment later finds what another one has made meanwhile, and counts on.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Union

from retrofit.analysis.calls import argument_for, given_parameters, returns_of
from retrofit.analysis.edits import whole_branches
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalClass
from retrofit.training.torch_api.files import LISTS, LISTS_METHODS, LOADS_STATE, PATH_FIRST, PATH_POSITIONS

from ..loops import LOOPS, LoopNode, loops_around
from .missing_files import is_asking
from .outputs import FOLDER, OPEN, SAVE, STORE, TRACKER, WRITE, Output

ADDING = GROWS_LIST | {"add"}
REDUCING = {"int", "len", "max", "min", "sum"}
NAMED = {FOLDER, OPEN, SAVE, STORE, TRACKER, WRITE}
LISTED, NUMBER = 1, 2  # what is in a folder; a number or a name made of that


Naming = Union[ast.Assign, ast.AnnAssign, LoopNode]


@dataclass(frozen=True)
class Numbered:
    """A statement that gives a run its name: an assignment, or a loop or an `if` with the names that it binds."""

    node: Naming | ast.If
    scope: Scope
    names: tuple[str, ...]
    is_common: bool  # every process gets there, whatever lies in the folder


def numbered_names(analysis: Analysis, outputs: list[Output]) -> list[Numbered]:
    """Return where files and folders of a run get a name by what is there already, each name once."""
    named = [(output.call, output.scope) for output in outputs if output.kind in NAMED]
    named += calls_named(analysis, LOADS_STATE)
    return list(_Search(analysis, named).all()) if named else []


class _Search:
    def __init__(self, analysis: Analysis, named: list[tuple[ast.Call, Scope]]) -> None:
        self.analysis = analysis
        self.named = named
        self.outputs = {call for call, _ in named}
        kept = [
            (call, max(PATH_POSITIONS.get(name, 0) for name in analysis.called(call, scope) | {""}))
            for call, scope in named
        ]
        self._contents = {part for call, position in kept for part in call.args[:position]}  # what a file gets
        path_first = [call for call, scope in named if analysis.called(call, scope) & PATH_FIRST]
        self._contents |= {part for call in path_first for part in call.args[1:]}
        self.returned: dict[ast.AST, int] = {}  # by function
        self._counters: dict[LoopNode, set[str]] = {}

    def all(self) -> Iterator[Numbered]:
        waiting = list(
            dict.fromkeys(
                scope for node, scope in reached_nodes(self.analysis).of(ast.Call, *LOOPS) if self._looks(node, scope)
            )
        )
        seen: set[Scope] = set()
        while waiting:
            scope = waiting.pop(0)
            if scope in seen:
                continue
            seen.add(scope)
            levels = self._levels(scope, set())
            level = max([self._level(value, scope, levels) for value in _returned(scope)], default=0)
            if level:
                self.returned[scope.node] = level
                waiting += [site.scope for site in self.analysis.callers(scope.node)]  # type: ignore[arg-type]
            else:
                yield from self._in(scope)

    def _looks(self, node: ast.AST, scope: Scope) -> bool:
        if isinstance(node, ast.Call):
            return self._lists(node, scope)
        return isinstance(node, LOOPS) and bool(self._counted(node, scope))

    def _in(self, scope: Scope) -> Iterator[Numbered]:
        """Yield the first statements of a function after which all processes have the same name, until none is left."""
        clean: set[str] = set()
        levels = self._levels(scope, clean)
        nodes = own_nodes(scope.node).of(ast.Assign, ast.AnnAssign, *LOOPS)
        for node in nodes:
            if any(loops_around(scope, node)):
                continue
            if isinstance(node, LOOPS):
                later = loaded_names(other for other in own_nodes(scope.node) if _is_after(other, node))
                names = sorted(self._counted(node, scope) & later - clean)
            else:
                is_number = node.value is not None and self._level(node.value, scope, levels) == NUMBER
                names = sorted(_targets(node) - clean) if is_number else []
            if names and self._names_output(set(names), scope):
                yield self._placed(node, scope, tuple(names), levels)
                clean |= set(names)
                levels = self._levels(scope, clean)

    def _placed(self, node: Naming, scope: Scope, names: tuple[str, ...], levels: dict[str, int]) -> Numbered:
        """Return where all processes have a name: after the tests of what is in the folder, if it has one there."""
        around = set(scope.source.ancestors(node))
        tests = self._tests(node, scope, levels)
        is_common = all(test in around for test in tests)
        for test in tests:
            if test in around:
                whole: ast.If = whole_branches(scope.source, test)  # type: ignore[assignment]
                return Numbered(whole, scope, names, is_common and all(_is_bound(n, whole, scope) for n in names))
        return Numbered(node, scope, names, is_common)

    def _levels(self, scope: Scope, clean: set[str]) -> dict[str, int]:
        """Return which names in a function, `self.name` too, come from what is in a folder; none of `clean`."""
        levels: dict[str, int] = {}
        before = None
        while levels != before:
            before = dict(levels)
            for node in own_nodes(scope.node):
                for name, level in self._given(node, scope, levels):
                    if level > levels.get(name, 0) and name not in clean:
                        levels[name] = level
        return levels

    def _given(self, node: ast.AST, scope: Scope, levels: dict[str, int]) -> Iterator[tuple[str, int]]:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            level = self._level(node.value, scope, levels)
            yield from ((name, level) for name in _targets(node))
        elif isinstance(node, LOOPS):
            if not isinstance(node, ast.While) and self._level(node.iter, scope, levels):
                yield from ((name, LISTED) for name in stored_names([node.target]))
            yield from ((name, NUMBER) for name in self._counted(node, scope))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
            yield _key(node.func.value), max([self._level(given, scope, levels) for given in node.args], default=0)

    def _level(self, value: ast.expr, scope: Scope, levels: dict[str, int]) -> int:
        found, is_reduced = 0, False
        if isinstance(value, ast.Call) and (value in self.outputs or self._makes(value, scope)):
            return 0
        for part in walk(value):
            if isinstance(part, ast.Call):
                functions = self.analysis.functions_called(part, scope)
                found = max([found, *(self.returned.get(function.node, 0) for function in functions)])
                found = max(found, LISTED if self._lists(part, scope) else 0)
                is_reduced |= isinstance(part.func, ast.Name) and part.func.id in REDUCING
            elif isinstance(part, (ast.Name, ast.Attribute)):
                found = max(found, levels.get(_key(part), 0))
            elif isinstance(part, ast.Subscript):
                is_reduced |= isinstance(part.slice, ast.UnaryOp) and isinstance(part.slice.op, ast.USub)
        return NUMBER if found and is_reduced else found

    def _makes(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call makes an object of the project: that it is given a name makes it none.

        It may be handed through methods of a library: Model(number).to(device).
        """
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(inner, ast.Call) and not self.analysis.functions_called(call, scope):
            return self._makes(inner, scope)
        return any(isinstance(value, LocalClass) for value in self.analysis.evaluate(call.func, scope))

    def _lists(self, call: ast.Call, scope: Scope) -> bool:
        if self.analysis.called(call, scope) & LISTS:
            return True
        is_method_of_path = isinstance(call.func, ast.Attribute) and call.func.attr in LISTS_METHODS
        return is_method_of_path and not self.analysis.functions_called(call, scope)

    def _counted(self, loop: LoopNode, scope: Scope) -> set[str]:
        """Return the names that a loop counts on until nothing of that name is there."""
        if loop not in self._counters:
            self._counters[loop] = self._counted_by(loop, scope)
        return self._counters[loop]

    def _counted_by(self, loop: LoopNode, scope: Scope) -> set[str]:
        tests = [loop.test] if isinstance(loop, ast.While) else []
        for part in walk(loop):
            leaves = isinstance(part, ast.If) and any(isinstance(s, (ast.Break, ast.Return)) for s in walk(part))
            tests += [part.test] if leaves else []  # type: ignore[attr-defined]
        asking = [part for test in tests for part in walk(test) if isinstance(part, ast.Call)]
        asked = loaded_names(part for part in asking if is_asking(self.analysis, part, scope))
        stored = stored_names([*loop.body, *([] if isinstance(loop, ast.While) else [loop.target])])
        return stored if asked & stored else set()

    def _tests(self, node: ast.stmt, scope: Scope, levels: dict[str, int]) -> list[ast.If]:
        """Return the tests of what is in a folder that decide who gets to a statement, outermost first."""
        around = {node, *scope.source.ancestors(node)}
        found = []
        for other in own_nodes(scope.node).of(ast.If):
            if other.lineno > node.lineno:
                continue
            leaves = any(isinstance(part, (ast.Return, ast.Raise)) for part in walk(other))
            asks = any(isinstance(p, ast.Call) and is_asking(self.analysis, p, scope) for p in walk(other.test))
            if (other in around or leaves) and (asks or self._level(other.test, scope, levels)):
                found.append(other)
        return found

    def _names_output(self, names: set[str], scope: Scope) -> bool:
        """Return whether a file or a folder is named by one of some names, here or where they are handed to."""
        starts = [(_with_copies(names, scope), scope)]
        return any(self._is_output_named(held, where) for held, where in closure(starts, self._handed_on))

    def _is_output_named(self, names: frozenset[str], scope: Scope) -> bool:
        wide = {name for name in names if "." in name or scope.parent is None}
        return any(
            _has(part, names if where is scope else wide)
            for call, where in self.named
            for part in (call.func, *call.args, *call.keywords)
            if part not in self._contents
        )

    def _handed_on(self, held: tuple[frozenset[str], Scope]) -> Iterator[tuple[frozenset[str], Scope]]:
        """Yield the parameters for which calls in a function give one of its names."""
        names, scope = held
        for call in own_nodes(scope.node).of(ast.Call):
            for function in self.analysis.functions_called(call, scope):
                bound = given_parameters(function.scope)
                given = {name: argument_for(call, bound, name) for name in bound}
                taken = {name for name, value in given.items() if value is not None and _has(value, names)}
                if taken:
                    yield _with_copies(taken, function.scope), function.scope


def _with_copies(names: set[str], scope: Scope) -> frozenset[str]:
    """Return names with those that are made of them in a function."""
    found, before = set(names), set[str]()
    while found != before:
        before = set(found)
        for node in own_nodes(scope.node).of(ast.Assign, ast.AnnAssign):
            if node.value is not None and _has(node.value, found):
                found |= _targets(node)
    return frozenset(found)


def _returned(scope: Scope) -> list[ast.expr]:
    return returns_of(scope.node) if isinstance(scope.node, FUNCTIONS) else []


def _key(node: ast.AST) -> str:
    """Return `name` or `self.name`, "" for another expression."""
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {_key(part) for part in parts} - {""}


def _has(node: ast.AST, names: Collection[str]) -> bool:
    return any(_key(part) in names for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)))


def _is_after(node: ast.AST, loop: LoopNode) -> bool:
    return getattr(node, "lineno", 0) > (loop.end_lineno or loop.lineno)


def _is_bound(name: str, test: ast.If, scope: Scope) -> bool:
    """Return whether a name has a value after an `if`, whichever way that goes."""
    branches = [test.body, test.orelse]
    if all(any(name in _bound(part) for s in branch for part in walk(s)) for branch in branches):
        return True
    return any(
        name in _bound(node) for node in own_nodes(scope.node) if getattr(node, "lineno", test.lineno) < test.lineno
    )


def _bound(node: ast.AST) -> set[str]:
    return _targets(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else set()
