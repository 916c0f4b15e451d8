"""Tests of a script by which it decides about its training: when to stop, when to step, which checkpoint is the best.

Read from the source of a project's files, by their syntax alone. A value in such a test that is not the same on all
ranks lets them part sooner or later, also where they do not in the few steps that are run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from retrofit.verify.trace.runtime import defines_mark
from retrofit.verify.trace.settings import KEEPS, PARTS, DecisionTest

from .files import python_files

MOST_BYTES = 500_000
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
ENDS = {"exit", "quit", "_exit"}
KEPT_BY = {"deepcopy", "state_dict"}
COLLECTIVE = re.compile(r"broadcast|reduce|gather|sum_over_ranks", re.IGNORECASE)
OF_A_RANK = re.compile(r"rank|main_process|is_main|is_master|is_root|is_chief|primary", re.IGNORECASE)
CLOCK = re.compile(r"(?:^|_)(?:time|elapsed|now|clock|seconds|secs|duration|eta|speed|memory)(?:_|$)", re.IGNORECASE)
CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "now"}


def decision_tests(folder: Path, script: Path) -> dict[str, list[DecisionTest]]:
    """Return the tests that decide in a script and in what it imports of its project, by the file's path there."""
    files = list(_imported_files(folder, script))
    decisions = _Decisions(files)
    found = {file.path: list(decisions.of(file)) for file in files}
    return {path: tests for path, tests in found.items() if tests}


def _imported_files(folder: Path, script: Path) -> Iterator[_File]:
    """Yield the script and, by their names alone, the files that it imports, directly or not."""
    known = python_files(folder)
    waiting, seen = [script], {script}
    while waiting:
        file = _File.read(folder, waiting.pop())
        if file is None:
            continue
        yield file
        for name in file.imported:
            found = [path for path in known.get(name, ()) if path not in seen]
            seen.update(found)
            waiting += found


@dataclass(eq=False)
class _Test:
    """A statement with a condition: what it reads and what depends on it."""

    node: ast.expr  # the condition
    function: ast.AST | None  # around it
    branches: list[ast.stmt] = field(default_factory=list)
    assigned: set[str] = field(default_factory=set)  # depending on it
    is_loop: bool = False
    is_returned: bool = False
    loop: ast.AST | None = None  # around it
    kind: str = ""


@dataclass(eq=False)
class _File:
    """One parsed file."""

    path: str
    tests: list[_Test]
    parents: dict[ast.AST, ast.AST]
    tree: ast.Module

    @classmethod
    def read(cls, folder: Path, path: Path) -> _File | None:
        try:
            if path.is_symlink() or path.stat().st_size > MOST_BYTES or defines_mark(str(path)):
                return None
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        file = cls(path.relative_to(folder).as_posix(), [], parents, tree)
        file.tests = [test for node in ast.walk(tree) for test in file._test_of(node)]
        return file

    @property
    def imported(self) -> set[str]:
        """Every part of a name that is imported."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {part for alias in node.names for part in alias.name.split(".")}
                names |= set((getattr(node, "module", None) or "").split("."))
        return names

    @cached_property
    def timed(self) -> set[str]:
        """Names that are assigned what a clock says."""
        assignments = [node for node in ast.walk(self.tree) if isinstance(node, ast.Assign)]
        return {name for node in assignments if _body_calls([node]) & CLOCKS for name in _targets(node)}

    def around(self, node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> ast.AST | None:
        """Return the innermost node of one of these kinds around `node`."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, kinds):
                return node
        return None

    def _test_of(self, node: ast.AST) -> Iterator[_Test]:
        if not isinstance(node, (ast.If, ast.While, ast.Assign, ast.AugAssign, ast.Return)):
            return
        function = self.around(node, FUNCTIONS)
        loop = self.around(node, (*LOOPS, *FUNCTIONS))
        if isinstance(node, (ast.If, ast.While)):
            branches = [*node.body, *node.orelse]
            yield _Test(node.test, function, branches, _assigned(branches), isinstance(node, ast.While), loop=loop)
        elif isinstance(node, (ast.Assign, ast.AugAssign)) and node.value is not None:
            conditions = [part.test for part in ast.walk(node.value) if isinstance(part, ast.IfExp)]
            if not conditions and _has_order(node.value):
                conditions = [node.value]
            for condition in conditions:
                yield _Test(condition, function, assigned=_targets(node), loop=loop)
        elif isinstance(node, ast.Return) and node.value is not None and _has_order(node.value):
            yield _Test(node.value, function, is_returned=True, loop=loop)


class _Decisions:
    """Finds out which tests decide, and about what. A test that sets what a deciding test reads decides, too."""

    def __init__(self, files: list[_File]) -> None:
        self.files = files
        self._training = _training_functions(files)
        self._agreed = {file: _given_to_collectives(file.tree) for file in files}
        self._names: dict[str, set[tuple[_File | None, str]]] = {PARTS: set(), KEEPS: set()}
        self._loops: dict[ast.AST, bool] = {}  # whether it trains
        self._called: set[str] = set()  # functions whose result decides whether ranks part
        for file in files:
            for call in (node for node in ast.walk(file.tree) if _is_save(node)):
                arguments = [*call.args, *(keyword.value for keyword in call.keywords)]  # type: ignore[attr-defined]
                self._names[KEEPS] |= {(file, part.id) for part in arguments if isinstance(part, ast.Name)}
        while any([self._find(file, test) for file in files for test in file.tests]):
            pass

    def of(self, file: _File) -> Iterator[DecisionTest]:
        for test in file.tests:
            if not test.kind or not _has_order(test.node) or self._is_by_clock(file, test.node):
                continue
            leaves = list(dict.fromkeys(_compared(test.node)))
            if leaves:
                text = " ".join(ast.unparse(test.node).split())
                is_own = bool(OF_A_RANK.search(text))
                kind = KEEPS if is_own else test.kind
                counts = _keeps_best(test.branches, leaves)
                yield DecisionTest(test.node.lineno, test.node.col_offset, text[:80], kind, leaves, counts)

    def _find(self, file: _File, test: _Test) -> bool:
        """Note what a test decides. Returns whether that is new."""
        kind = self._kind(file, test)
        if kind in ("", test.kind) or (test.kind == PARTS):
            return False
        test.kind = kind
        for name in _names_in(test.node):
            scope = None if name.startswith(".") else file
            if name.strip(".") not in self._agreed[file]:
                self._names[kind].add((scope, name))
        if kind == PARTS:
            self._called |= {_last_name(node) for node in ast.walk(test.node) if isinstance(node, ast.Call)}
        return True

    def _kind(self, file: _File, test: _Test) -> str:
        if test.is_loop and self._trains(file.parents[test.node]):
            return PARTS
        if any(self._parts(file, statement, test) for statement in test.branches):
            return PARTS
        if test.is_returned and self._is_asked(test.function):
            return PARTS
        for kind in (PARTS, KEEPS):
            own = {(file if "." not in name else None, name) for name in _with_dots(test.assigned)}
            if own & self._names[kind]:
                return kind
        return KEEPS if any(_is_save(node) for one in test.branches for node in ast.walk(one)) else ""

    def _parts(self, file: _File, statement: ast.stmt, test: _Test) -> bool:
        """Return whether a rank that runs this statement and one that does not are in other places afterwards."""
        waiting: list[tuple[ast.AST, bool]] = [(statement, False)]
        while waiting:
            node, is_in_loop = waiting.pop()
            if isinstance(node, FUNCTIONS):
                continue
            is_left = isinstance(node, (ast.Break, ast.Continue)) and not is_in_loop
            if is_left and isinstance(test.loop, LOOPS) and self._trains(test.loop):
                return True
            if isinstance(node, ast.Return):
                function = self.name_of(test.function)
                if self._is_asked(test.function) or (function in self._training and test.loop is not test.function):
                    return True
            if isinstance(node, ast.Call):
                name = _last_name(node)
                is_end = name in ENDS and all(ast.unparse(one) in ("0", "None") for one in node.args)  # no error
                if is_end or (name == "step" and isinstance(node.func, ast.Attribute)):
                    return True
            inner = is_in_loop or isinstance(node, LOOPS)
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
        return False

    def _is_asked(self, function: ast.AST | None) -> bool:
        """Return whether the result of this function decides whether ranks part: `if should_stop(loss): break`."""
        name = self.name_of(function)
        return name in self._called or (name == "__call__" and bool(self._called))

    def _trains(self, loop: ast.AST) -> bool:
        if loop not in self._loops:
            self._loops[loop] = bool(_body_calls([loop]) & self._training)
        return self._loops[loop]

    def _is_by_clock(self, file: _File, condition: ast.expr) -> bool:
        """Return whether a test asks for the time: each rank has its own, and that is another subject."""
        names = _names_in(condition)
        if any(CLOCK.search(name.strip(".")) for name in names):
            return True
        return bool({name.strip(".") for name in names} & file.timed)

    @staticmethod
    def name_of(function: ast.AST | None) -> str:
        return getattr(function, "name", "")


def _training_functions(files: Iterable[_File]) -> set[str]:
    """Return the names by which something is called that trains: backward, step, and all functions that call these."""
    found = {"backward", "step"}
    bodies = [
        (node.name, _body_calls([node]))
        for file in files
        for node in ast.walk(file.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    while new := {name for name, calls in bodies if calls & found} - found:
        found |= new
    return found


def _given_to_collectives(tree: ast.AST) -> set[str]:
    """Return the names that are given to a collective call somewhere: the ranks agree on them."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and COLLECTIVE.search(_last_name(node))]
    return {
        name.strip(".")
        for call in calls
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for name in _names_in(argument)
    }


def _body_calls(nodes: Iterable[ast.AST]) -> set[str]:
    return {_last_name(node) for one in nodes for node in ast.walk(one) if isinstance(node, ast.Call)}


def _last_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_save(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = _last_name(node)
    return "save" in name.lower() or name in KEPT_BY


def _has_order(expression: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare) and any(isinstance(operator, ORDERS) for operator in node.ops)
        for node in ast.walk(expression)
    )


def _compared(condition: ast.expr) -> Iterator[str]:
    """Yield the source of each variable that a test compares: `acc`, `self.best`, `losses[0]`."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from _variables(side)


def _variables(expression: ast.AST) -> Iterator[str]:
    if isinstance(expression, ast.Name) or (
        isinstance(expression, (ast.Attribute, ast.Subscript)) and _is_plain(expression)
    ):
        yield ast.unparse(expression)
    elif isinstance(expression, ast.Call):
        if isinstance(expression.func, ast.Attribute):
            yield from _variables(expression.func.value)  # loss.item()
        for argument in expression.args:
            yield from _variables(argument)
    else:
        for child in ast.iter_child_nodes(expression):
            yield from _variables(child)


def _is_plain(expression: ast.AST) -> bool:
    """Return whether reading this changes nothing: names, attributes, and entries at a constant or at a name."""
    if isinstance(expression, ast.Subscript):
        index = expression.slice.operand if isinstance(expression.slice, ast.UnaryOp) else expression.slice
        return isinstance(index, (ast.Constant, ast.Name)) and _is_plain(expression.value)
    if isinstance(expression, ast.Attribute):
        return _is_plain(expression.value)
    return isinstance(expression, ast.Name)


def _names_in(expression: ast.AST) -> set[str]:
    """Return the variables that an expression reads: `best`, and `.best` for an attribute of that name."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return names | {f".{node.attr}" for node in ast.walk(expression) if isinstance(node, ast.Attribute)}


def _keeps_best(branches: Iterable[ast.stmt], compared: list[str]) -> bool:
    """Return whether what is compared is kept: `if right > best: best = right`."""
    assignments = [node for one in branches for node in ast.walk(one) if isinstance(node, ast.Assign)]
    return any(
        ast.unparse(target) in compared and set(_variables(node.value)) & (set(compared) - {ast.unparse(target)})
        for node in assignments
        for target in node.targets
    )


def _with_dots(names: set[str]) -> set[str]:
    return {name for plain in names for name in (plain, f".{plain}")}


def _assigned(statements: Iterable[ast.stmt]) -> set[str]:
    return {
        name
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for name in _targets(node)
    }


def _targets(node: ast.Assign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}
