"""Where in a script the processes become one job: behind the parsing of its options, before anything is made."""

from __future__ import annotations

import ast

from retrofit.project import Project
from retrofit.project.arguments import Parsing
from retrofit.project.edits import Edit, insert_after, insert_before
from retrofit.project.environ import assignments_to_environ
from retrofit.project.main_guard import is_main_guard
from retrofit.project.outputs import PRINT
from retrofit.project.placement import after_home, block_of, first_statement
from retrofit.project.scopes import FUNCTIONS, Scope
from retrofit.project.source import Source
from retrofit.project.values import LocalClass, LocalFunction


def behind_setup(project: Project, line: str | None) -> tuple[Source, ast.stmt, Edit]:
    """Return an edit that joins the group, or that adds a line behind the place where it is joined."""
    lines = [line or "rd.setup_distributed()"]
    place = _behind_parsing(project, project.parsings[0]) if project.parsings else None
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
    statement = scope.source.statement(node)
    statement = _choosing_gpus(project, scope.source, statement) or statement
    return scope.source, statement, insert_after(scope.source, statement, lines)


def _choosing_gpus(project: Project, source: Source, statement: ast.stmt) -> ast.stmt | None:
    """Return the statement in this block, from `statement` on, that sets which GPUs are visible.

    The runtime chooses a GPU when it joins the group, and CUDA reads that variable once only.
    """
    block = block_of(source, statement)
    for setting, name, _, scope in assignments_to_environ(project.analysis):
        if name != "CUDA_VISIBLE_DEVICES" or scope.source is not source:
            continue
        around = {setting, *source.ancestors(setting)}
        for later in block[block.index(statement) :]:
            if later not in around or is_main_guard(later) or _is_too_late(project, source, later):
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
    homes = [model.home for model in project.models] + [loader.home for loader in project.loaders if loader.home]
    made = [after_home(project.analysis, home, project.paths) for home in homes]
    places = [place for place in made if place is not None and place[0] is function.source]
    outputs = [output.call for output in project.outputs if output.kind != PRINT and _starts(output.scope, function)]
    lines = [place[1].lineno for place in places if place[1] in function.node.body]  # type: ignore[union-attr, operator]
    return min([*lines, *(call.lineno for call in outputs)], default=statement.lineno + 1) > statement.lineno


def _starts(scope: Scope, function: Scope) -> bool:
    """Return whether a scope is a function, or the script around it."""
    return scope is function or (scope.parent is None and scope.source is function.source)


def _is_too_late(project: Project, source: Source, statement: ast.stmt) -> bool:
    """Return whether a loader or a model is made by the script's own lines before it parses its command line."""
    homes = [model.home for model in project.models] + [loader.home for loader in project.loaders if loader.home]
    made = [after_home(project.analysis, home, project.paths) for home in homes if home.scope.parent is None]
    return any(place is not None and place[0] is source and place[1].lineno < statement.lineno for place in made)


def _behind_parsing(project: Project, parsing: Parsing) -> tuple[Scope, ast.expr] | None:
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
    frame = project.paths[0].frames[-1]
    statement = first_statement(frame.scope)
    if is_main_guard(statement):
        assert isinstance(statement, ast.If)
        statement = statement.body[0]
    return frame.scope.source, statement
