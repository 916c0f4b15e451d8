"""Guards that let one process alone write or print, with as few changed lines as possible."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from retrofit.analysis.calls import CallSite, argument_for, is_method, last_name
from retrofit.analysis.edits import CONDITION as AT_CONDITION
from retrofit.analysis.edits import Edit, EditConflict, add_condition, call_through, put_under, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.calls.graph import holds_on_every_path
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.main_guard import is_main_guard, is_under_main_of_another
from retrofit.analysis.memory import Memory, answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import TAKES_OUT
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.files import PATH_PARAMETERS, RETURNS_SOMETHING, SAVES_BY_NAME
from retrofit.training.torch_api.runtime import RUNS_ON_MAIN

from ..distributed.ranks.rank_guards import MAIN, UNCLEAR, is_for_main, side_of
from ..placement import block_of
from .outputs import FOLDER, PRINT, SAVE, SHOW, TRACK, WRITE, Output

LOOKING = {"len", "min", "max", "abs", "int", "float", "str", "bool", "isinstance", "hasattr", "getattr", "any", "all"}
CONDITION = "rd.is_main_process()"
GUARDED_KINDS = {SAVE, WRITE, FOLDER, TRACK, SHOW}


@dataclass(frozen=True)
class Guard:
    """The request to let one process alone run the statement of an output; `find_guards` says how."""

    output: Output

    @property
    def source(self) -> Source:
        return self.output.scope.source

    @property
    def statement(self) -> ast.stmt:
        return self.source.statement(self.output.call)


def find_guards(
    analysis: Analysis,
    outputs: list[Output],
    moved: Collection[ast.AST] = frozenset(),
    shared: Collection[ast.AST] = frozenset(),
) -> dict[Output, tuple[Edit, ...]]:
    """Return the edits that guard each output which is a statement of its own; none for what is guarded already.

    Where an `if` does nothing but such outputs, its test gets the condition; else neighbours share an `if`. Inside
    the statements `moved`, which something else puts under a header, each has its condition on its own line. Every
    rank must come to the statements `shared`: no test around them gets the condition, and an `if` ends before them.
    Every rank also takes out of a list what rank 0 alone removes, or their lists would differ.
    """
    by_statement: dict[ast.stmt, list[Output]] = defaultdict(list)
    printing: set[ast.stmt] = set()
    within: dict[Output, tuple[Edit, ...]] = {}
    for output in outputs:
        statement = output.scope.source.statement(output.call)
        if isinstance(output.scope.node, ast.Lambda) or not isinstance(statement, ast.Expr):
            within[output] = guard_within(analysis, output) if output.kind in GUARDED_KINDS else ()
            continue
        if runs_on_one(analysis, output.scope, statement):
            continue
        if output.kind in GUARDED_KINDS and statement.value is output.call and _takes_out(output.call):
            within[output] = tuple(call_through(output.scope.source, output.call, "rd.output.on_main_process"))
        elif output.kind in GUARDED_KINDS:
            by_statement[statement].append(output)
        elif output.kind == PRINT and statement.value is output.call:
            printing.add(statement)
    edits: dict[Output, tuple[Edit, ...]] = {output: changes for output, changes in within.items() if changes}
    done: set[ast.stmt] = set()
    for statement, of_statement in by_statement.items():
        if statement in done:
            continue
        source = of_statement[0].scope.source
        harmless = partial(_is_harmless, analysis, of_statement[0].scope)
        is_moved = any(outer in moved for outer in (statement, *source.ancestors(statement)))
        group, changes = _group(source, statement, set(by_statement), printing, harmless, is_moved, shared)
        done |= set(group)
        for member in group:
            for output in by_statement.get(member, []):
                edits[output] = tuple(changes)
    return edits


def _takes_out(call: ast.Call) -> bool:
    """Return whether what a call is given changes something on every rank: `os.remove(saved.pop(0))`."""
    inside = [part for part in walk(call) if part is not call]
    return any(isinstance(part, ast.Call) and last_name(part) in TAKES_OUT for part in inside)


def guard_within(analysis: Analysis, output: Output) -> tuple[Edit, ...]:
    """Return the edits that let rank 0 alone write inside an expression: in a lambda, in `x if test else y`.

    Where a path is given the others write to the null device: what they compute for it may be a step that all take.
    What a function of a library returns, which writes files of its own choice, all ranks get from rank 0.
    """
    call, scope = output.call, output.scope
    if runs_on_one(analysis, scope, call):
        return ()
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = output.name if output.name in PATH_PARAMETERS else method
    path = argument_for(call, *PATH_PARAMETERS[name]) if name in PATH_PARAMETERS else None
    if path is not None:
        return tuple(surround(scope.source, path, "rd.path_on_main(", ")"))
    if SAVES_BY_NAME.fullmatch(output.name):
        return tuple(call_through(scope.source, call, "rd.output.answer_of_main"))
    return () if output.name in RETURNS_SOMETHING else tuple(surround(scope.source, call, f"({CONDITION} and ", ")"))


@answered_once
def runs_on_one(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node runs on one process only: itself, or every call of its function, is under a test."""
    return holds_on_every_path(analysis, node, scope, partial(_is_on_one, analysis), partial(_is_run, analysis))


@answered_once
def _is_on_one(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a test around a node, or what its function is, lets one process alone run it."""
    if side_of(analysis, scope, node) in (MAIN, UNCLEAR) or analysis.spawned.runs_once(scope) or is_for_main(scope):
        return True
    is_called = any(_is_run(analysis, site) for site in sites_of(analysis, scope))
    return _is_method_on_one(analysis, scope) or (not is_called and is_handed_to_main(analysis, scope))


def _is_run(analysis: Analysis, site: CallSite) -> bool:
    return not is_under_main_of_another(analysis, site.scope, site.call)


def runs_on_some(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether some of the processes leave a node out: one alone runs it, or all but one, or it depends."""
    return bool(side_of(analysis, scope, node)) or runs_on_one(analysis, scope, node)


def _is_method_on_one(analysis: Analysis, scope: Scope) -> bool:
    """Return whether a function is a method of objects that one process alone makes."""
    if not is_method(scope) or getattr(scope.node, "name", "") == "__init__":
        return False
    assert scope.parent is not None
    owner = scope.parent
    # What makes other objects of its own class does not say where the first is made.
    known: Memory[bool] = analysis.fact("made on one", lambda: Memory(False))
    return known.once(owner, lambda: _is_made_on_one(analysis, owner))


def _is_made_on_one(analysis: Analysis, class_scope: Scope) -> bool:
    making = analysis.classes.method(class_scope, "__init__")
    sites = analysis.callers(making.node) if making is not None else []
    made = [
        site for site in sites if not (isinstance(site.call.func, ast.Attribute) and last_name(site.call) == "__init__")
    ]
    return bool(made) and all(runs_on_one(analysis, site.scope, site.call) for site in made)


def is_handed_to_main(analysis: Analysis, function: Scope) -> bool:
    """Return whether a function is only handed to rd.output.on_main_process(...)."""
    return function in analysis.fact("handed to main", lambda: set(_handed_to_main(analysis)))


def _handed_to_main(analysis: Analysis) -> Iterator[Scope]:
    for scope in analysis.scopes():
        for node in own_nodes(scope.node).of(ast.Call):
            if node.args and RUNS_ON_MAIN & analysis.called(node, scope):
                values = (value for argument in node.args for value in analysis.evaluate(argument, scope))
                yield from (value.scope for value in values if isinstance(value, LocalFunction))


def _group(
    source: Source,
    statement: ast.stmt,
    guarded: set[ast.stmt],
    printing: set[ast.stmt],
    is_harmless: Callable[[ast.expr], bool],
    is_moved: bool,
    shared: Collection[ast.AST],
) -> tuple[list[ast.stmt], list[Edit]]:
    """Return the statements that are guarded together with `statement`, and how."""
    block = block_of(source, statement)
    parent = source.parents[statement]
    is_plain_if = isinstance(parent, ast.If) and block is parent.body and not parent.orelse
    is_alone = all((m in guarded or m in printing) and m not in shared for m in block)
    if is_plain_if and is_alone and not is_main_guard(parent):
        assert isinstance(parent, ast.If)
        if is_harmless(parent.test):
            return block, add_condition(source, parent, CONDITION)
    if is_moved:
        return [statement], _inline(source, statement)
    position = block.index(statement)
    last = position
    while last + 1 < len(block) and block[last + 1] in guarded and block[last + 1] not in shared:
        last += 1
    group = block[position : last + 1]
    try:
        return group, put_under(source, group, f"if {CONDITION}:")
    except EditConflict:
        return [statement], _inline(source, statement)


def _is_harmless(analysis: Analysis, scope: Scope, test: ast.expr) -> bool:
    """Return whether the other processes may leave a test out: it only looks, and runs nothing of the project."""
    calls = [part for part in walk(test) if isinstance(part, ast.Call)]
    return all(_only_looks(analysis.called(call, scope)) for call in calls)


def _only_looks(names: set[str]) -> bool:
    return bool(names) and all(name in LOOKING or name.startswith("os.path.") for name in names)


def _inline(source: Source, statement: ast.stmt) -> list[Edit]:
    """Guard a statement that shares its line: `if x: save()` becomes `if x: condition and save()`."""
    start, _ = source.span(statement)
    return [Edit(source, start, start, f"{CONDITION} and ", AT_CONDITION)]
