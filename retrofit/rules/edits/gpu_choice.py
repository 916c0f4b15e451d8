"""The line with which a script chooses its GPUs, which has to come before the processes join: CUDA reads it once."""

from __future__ import annotations

import ast

from retrofit.analysis.edits import has_own_lines
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.calls.graph import calls_in, functions_reached
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.training import Project
from retrofit.training.files.outputs import FOLDER, OPEN, PRINT, SAVE, STORE, TRACK, TRACKER, WRITE
from retrofit.training.launch.environment import assignments_to_environ
from retrofit.training.placement import after_variable, block_of

LASTING = {FOLDER, OPEN, SAVE, STORE, TRACK, TRACKER, WRITE}


def choice_after(project: Project, source: Source, statement: ast.stmt) -> ast.stmt | None:
    """Return the statement in this block, from `statement` on, that sets which GPUs are visible.

    Also one in a function that all training goes through, if nothing comes before it there.
    """
    block = block_of(source, statement)
    for setting, name, _, scope in assignments_to_environ(project.analysis):
        if name != "CUDA_VISIBLE_DEVICES" or scope.source is not source:
            continue
        around = {setting, *source.ancestors(setting)}
        for later in block[block.index(statement) :]:
            if later not in around or is_main_guard(later):
                continue
            if not isinstance(later, (*FUNCTIONS, ast.ClassDef)):
                return later
            inner = _within(scope, around)
            if later is scope.node and _does_nothing_before(project, scope, inner):
                return inner
    return None


def _within(function: Scope, around: set[ast.AST]) -> ast.stmt:
    """Return the statement of a function's own block that is, or holds, another one."""
    return next(statement for statement in function.node.body if statement in around)  # type: ignore[union-attr, misc]


def _does_nothing_before(project: Project, function: Scope, statement: ast.stmt) -> bool:
    """Return whether all training goes through a function, and nothing is made or written until a statement in it."""
    if not all(any(frame.scope is function for frame in path.frames) for path in project.paths):
        return False
    variables = [model.variable for model in project.models] + [
        loader.variable for loader in project.loaders if loader.variable
    ]
    made = [after_variable(project.analysis, variable, project.paths) for variable in variables]
    places = [place for place in made if place is not None and place[0] is function.source]
    outputs = [output.call for output in project.outputs if output.kind != PRINT and _starts(output.scope, function)]
    lines = [place[1].lineno for place in places if place[1] in function.node.body]  # type: ignore[union-attr, operator]
    return min([*lines, *(call.lineno for call in outputs)], default=statement.lineno + 1) > statement.lineno


def _starts(scope: Scope, function: Scope) -> bool:
    """Return whether a scope is a function, or the script around it."""
    return scope is function or (scope.parent is None and scope.source is function.source)


def can_come_first(source: Source, statement: ast.stmt, choice: ast.stmt) -> bool:
    """Return whether everything that a choice reads is known after `statement` already."""
    between = _between(source, statement, choice)
    is_known = not (loaded_names([choice]) & stored_names(between) or _attributes([choice]) & _set_attributes(between))
    return isinstance(choice, (ast.Assign, ast.Expr)) and has_own_lines(source, choice) and is_known


def leaves_something(project: Project, source: Source, statement: ast.stmt, choice: ast.stmt) -> bool:
    """Return whether files or folders are made between two statements."""
    scope = project.analysis.scope_at(source, statement)
    return any(_leaves_something(project, part, scope) for part in _between(source, statement, choice))


def _between(source: Source, statement: ast.stmt, choice: ast.stmt) -> list[ast.stmt]:
    block = block_of(source, statement)
    return block[block.index(statement) + 1 : block.index(choice)]


def _attributes(nodes: list[ast.stmt]) -> set[str]:
    return {ast.unparse(part) for node in nodes for part in walk(node) if isinstance(part, ast.Attribute)}


def _set_attributes(nodes: list[ast.stmt]) -> set[str]:
    parts = (part for node in nodes for part in walk(node))
    return {ast.unparse(part) for part in parts if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)}


def _leaves_something(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement makes a file or a folder, or a function that it calls does."""
    made = {output.call for output in project.outputs if output.kind in LASTING}
    calls = [(part, scope) for part in walk(statement) if isinstance(part, ast.Call)]
    functions = functions_reached(project.analysis, calls)
    return any(call in made for call, _ in (*calls, *(place for f in functions for place in calls_in(f))))
