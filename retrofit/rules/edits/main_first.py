"""Run neighbouring preparations on rank 0 first, under one `with rd.output.main_process_first():`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from retrofit.analysis.edits import Edit, EditConflict, decorate, has_own_lines, put_under
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, LocalClass, LocalFunction
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.edits.early_modules import import_of_early
from retrofit.training import Project
from retrofit.training.files.preparations import Preparation
from retrofit.training.placement import after_variable, block_of

CALL = "rd.output.main_process_first()"
SHARING_CALL = "rd.output.main_process_first(share_draws=True)"
FEW_LINES = 3  # that are put under a `with`; for more the function that is nothing else gets a decorator


def main_first(project: Project) -> dict[Preparation, list[Edit]]:
    """Return the edits for each preparation; none where no group exists yet, or the lines hold other statements."""
    statements: dict[ast.stmt, Source] = {
        statement: p.scope.source
        for p in project.preparations
        for statement in p.statements
        if has_group(project, p.scope, p.statements[0])
    }
    edits: dict[ast.stmt, list[Edit]] = {}
    ends = _ends(project)
    drawing = {statement for p in project.preparations if p.draws for statement in p.statements}
    for first, source in statements.items():
        if first in edits:
            continue
        group = _neighbours(source, first, statements, ends)
        function = _whole_function(project, source, group)
        try:
            call = SHARING_CALL if drawing & set(group) else CALL
            whole = [decorate(source, function, f"@{call}")] if function else []
            changes = whole or put_under(source, group, f"with {call}:")
        except EditConflict:
            changes = []
        edits.update(dict.fromkeys(group, changes))
    return {p: edits.get(p.statements[0], []) for p in project.preparations}


def _neighbours(
    source: Source, statement: ast.stmt, statements: dict[ast.stmt, Source], ends: Sequence[ast.stmt]
) -> list[ast.stmt]:
    """Return the statements to be done first that follow one another around one of them."""
    block = block_of(source, statement)
    first = last = block.index(statement)
    while first and block[first - 1] in statements and block[first - 1] not in ends:
        first -= 1
    while last + 1 < len(block) and block[last + 1] in statements and block[last] not in ends:
        last += 1
    return block[first : last + 1]


def _whole_function(project: Project, source: Source, group: Sequence[ast.stmt]) -> ast.stmt | None:
    """Return the function whose whole work is a group of many lines: its other statements name things and return."""
    function = source.parents[group[0]]
    num_lines = (group[-1].end_lineno or 0) - group[0].lineno + 1
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or num_lines <= FEW_LINES:
        return None
    if function.name == "__init__":  # making an object is more than what it finds or makes
        return None
    rest = [statement for statement in function.body if statement not in group]
    scope = project.analysis.scope_at(source, group[0])
    calls = [part for statement in rest for part in walk(statement) if isinstance(part, ast.Call)]
    is_plain = all(isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) for statement in rest)
    is_generator = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in walk(function))
    is_local = not any(_may_need_all(project, call, scope) for call in calls)
    return function if is_plain and is_local and not is_generator and has_own_lines(source, function) else None


def _may_need_all(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call runs code of the project, or makes a model or a loader: all processes may have to come."""
    values = project.analysis.evaluate(call.func, scope)
    builders = {builder for loader in project.loaders for builder in loader.builders}
    is_trained = any(call is node for path in project.paths for node in (frame.node for frame in path.frames))
    runs_code = any(isinstance(value, (LocalFunction, LocalClass, Instance)) for value in values)
    return runs_code or is_trained or call in builders or project.leads_to_collective(call, scope)


def _ends(project: Project) -> list[ast.stmt]:
    """Return the statements after which a line is added, for all processes, for a loader or a model."""
    variables = [model.variable for model in project.models] + [
        loader.variable for loader in project.loaders if loader.variable
    ]
    places = [after_variable(project.analysis, variable, project.paths) for variable in variables]
    return [place[1] for place in places if place is not None]


def has_group(project: Project, scope: Scope, node: ast.AST) -> bool:
    """Return whether the processes have joined where a node is run: not while modules are imported."""
    if not scope.is_run_by_import or project.distribution.joins:
        return True
    scope = scope.module
    if scope.source is not project.entry and import_of_early(project) is not None:
        return True
    source, joining = project.analysis.fact("joining", lambda: edit_after_setup(project, None)[:2])
    joined_in = project.analysis.scope_at(source, joining)
    if joined_in is scope:
        return node.lineno >= joining.lineno  # type: ignore[attr-defined]
    calls = project.analysis.fact("calls that join", lambda: call_chains(project.analysis, joining, joined_in))
    ends = [where.source.statement(call).end_lineno for call, where in calls if where is scope]
    return any(end < node.lineno for end in ends)  # type: ignore[attr-defined, operator]
