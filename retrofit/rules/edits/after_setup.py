"""The place in a script where the process group is joined: after its options are parsed, before anything is created."""

from __future__ import annotations

import ast
from dataclasses import replace

from retrofit.analysis.edits import Edit, insert_after, insert_before
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import LocalClass, LocalFunction
from retrofit.rules.edits.early_modules import import_of_early
from retrofit.rules.edits.gpu_choice import can_come_first, choice_after, leaves_something
from retrofit.training import Project
from retrofit.training.launch.arguments import Parsing
from retrofit.training.launch.commands import first_functions
from retrofit.training.placement import after_variable, block_of, first_statement


def edit_after_setup(project: Project, line: str | None) -> tuple[Source, ast.stmt, Edit]:
    """Return an edit that joins the group, or that adds a line after the place where it is joined."""
    lines = [line or "rd.setup_distributed()"]
    place = _after_parsing(project, project.parsings[0]) if project.parsings else None
    early = import_of_early(project)
    if early is not None and (place is None or place[0].is_function or place[0].source is project.entry):
        return project.entry, early, insert_before(project.entry, early, lines)
    if place is None or _is_too_late(project, place[0].source, place[0].source.statement(place[1])):
        source, statement = _start(project)
        choosing = _choosing_gpus(project, source, statement)
        edit = insert_after(source, choosing, lines) if choosing else insert_before(source, statement, lines)
        return source, statement, edit
    scope, node = place
    taker = _taker(project, node, scope)
    if taker is not None:
        statement = first_statement(taker)
        return taker.source, statement, insert_before(taker.source, statement, lines)
    statement = _whole_branch(project, scope, node)
    choice = choice_after(project, scope.source, statement)
    if choice is not None and not _moves(project, scope.source, statement, choice):
        statement = statement if _is_too_late(project, scope.source, choice) else choice
    return scope.source, statement, insert_after(scope.source, statement, lines)


def place_before(project: Project, choice: ast.stmt, line: str) -> Edit | None:
    """Return an edit that puts `line`, a choice of GPUs, before where the group is joined; None if it stays."""
    if not project.paths or not project.parsings or project.distribution.joins:
        return None
    source, statement, edit = edit_after_setup(project, line)
    block = block_of(source, statement)
    if choice not in block or block.index(choice) <= block.index(statement):
        return None
    return replace(edit, order=edit.order - 1) if _moves(project, source, statement, choice) else None


def _choosing_gpus(project: Project, source: Source, statement: ast.stmt) -> ast.stmt | None:
    choice = choice_after(project, source, statement)
    return None if choice is None or _is_too_late(project, source, choice) else choice


def _moves(project: Project, source: Source, statement: ast.stmt, choice: ast.stmt) -> bool:
    """Return whether a choice of GPUs moves up to follow `statement`, because something in between needs the group."""
    if choice not in block_of(source, statement):
        return False
    needed = leaves_something(project, source, statement, choice) or _is_too_late(project, source, choice)
    return needed and can_come_first(source, statement, choice)


def _is_too_late(project: Project, source: Source, statement: ast.stmt) -> bool:
    """Return whether a loader or a model is made before a statement, by the same lines or by the script's own."""
    scope = project.analysis.scope_at(source, statement)
    around = [variable for variable in _variables(project) if variable.scope.parent is None or variable.scope is scope]
    return any(made.lineno < statement.lineno for made in _made_in(project, source, around))


def _variables(project: Project) -> list[Variable]:
    """Return the variables of the models and the loaders."""
    loaders = [loader.variable for loader in project.loaders if loader.variable]
    return [model.variable for model in project.models] + loaders


def _made_in(project: Project, source: Source, variables: list[Variable]) -> list[ast.stmt]:
    """Return the statements of a file after which variables are set."""
    places = [after_variable(project.analysis, variable, project.paths) for variable in variables]
    return [place[1] for place in places if place is not None and place[0] is source]


def _after_parsing(project: Project, parsing: Parsing) -> tuple[Scope, ast.expr] | None:
    """Return the call with which the command line is parsed: what returns it from a function leads to its call."""
    node, scope = parsing.call, parsing.scope
    for _ in range(5):
        statement = scope.source.statement(node)
        if not isinstance(statement, ast.Return):
            return scope, node
        callers = project.analysis.callers(scope.node)  # type: ignore[arg-type]
        if len(callers) != 1:
            return None
        node, scope = callers[0].call, callers[0].scope
    return None


def _whole_branch(project: Project, scope: Scope, node: ast.expr) -> ast.stmt:
    """Return the statement of a call, or the one that runs it in some cases only: `if args is None: args = parse()`.

    The group is joined in the other cases too; not so where more follows in the branch, which may need the group, or
    where it trains itself.
    """
    source = scope.source
    statement = source.statement(node)
    for outer in source.ancestors(statement):
        is_last = block_of(source, statement)[-1] is statement
        if not is_last or not isinstance(outer, (ast.If, ast.Try)) or is_main_guard(outer):
            break
        if _needs_group(project, source, outer):
            break
        statement = outer
    return statement


def _needs_group(project: Project, source: Source, branch: ast.stmt) -> bool:
    """Return whether a statement holds a part of the training, or makes a model or a loader."""
    frames = [frame.node for path in project.paths for frame in path.frames if frame.scope.source is source]
    nodes = [*frames, *_made_in(project, source, _variables(project))]
    return any(branch is outer for node in nodes for outer in source.ancestors(node))


def _taker(project: Project, node: ast.expr, scope: Scope) -> Scope | None:
    """Return the function, or the class's `__init__`, that is given what was parsed: `main(parser.parse_args())`."""
    for outer in scope.source.ancestors(node):
        if isinstance(outer, ast.stmt):
            break
        for value in project.analysis.evaluate(outer.func, scope) if isinstance(outer, ast.Call) else ():
            function = (
                project.analysis.classes.method(value.scope, "__init__") if isinstance(value, LocalClass) else value
            )
            if isinstance(function, LocalFunction) and not isinstance(function.node, ast.Lambda):
                return function.scope
    return None


def _start(project: Project) -> tuple[Source, ast.stmt]:
    """Return the statement with which the training script's own work begins."""
    function = starting_function(project)
    if function is not None:
        return function.source, first_statement(function)
    scopes = [path.frames[-1].scope for path in project.paths]
    scope = next((scope for scope in scopes if not scope.is_function), scopes[0])
    guard = _main_guard(project.entry)
    if scope.is_function and guard is not None:  # one of several, and what calls them is not known
        return project.entry, guard.body[0]
    statement = first_statement(scope.module)
    if is_main_guard(statement):
        assert isinstance(statement, ast.If)
        statement = statement.body[0]
    return scope.source, statement


def starting_function(project: Project) -> Scope | None:
    """Return the function at the beginning of which the group is joined: the only one in which trainings begin.

    None where the script itself begins, or where a model or a loader is made before.
    """
    functions = first_functions(project.analysis, project.paths)
    if len(functions) != 1:
        return None
    statement = first_statement(functions[0])
    return None if _is_too_late(project, functions[0].source, statement) else functions[0]


def _main_guard(source: Source) -> ast.If | None:
    return next((part for part in source.tree.body if isinstance(part, ast.If) and is_main_guard(part)), None)
