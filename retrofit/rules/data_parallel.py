"""RF208 data-parallel: one process drives several GPUs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.analysis import Analysis
from retrofit.project.data_parallel import WRAPPERS, added_to_wrapper, module_run, run_plainly
from retrofit.project.edits import Edit, has_own_lines, leave_else, replace
from retrofit.project.homes import homes_of, upstream
from retrofit.project.outputs import PRINT
from retrofit.project.reach import reached_nodes
from retrofit.project.removal import is_elif, remove
from retrofit.project.scopes import FUNCTIONS, Scope
from retrofit.project.source import Source

from .finding import Finding, found

CODE = "RF208"
NAME = "data-parallel"
WHY = "DataParallel in each process would copy the model to the GPUs of the others, and it is slow even alone."
HELP = "remove it, and `.module` with it: the wrapper of the runtime has the model's own attributes and keys"
BAD = """\
model = nn.DataParallel(Net().cuda())
"""
GOOD = """\
model = rd.distribute_model(Net().cuda())
"""
ASKING = {"hasattr", "isinstance"}
MESSAGE = "DataParallel is for one process that drives all GPUs"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # it is what the script does when it is not started as several processes
    analysis = project.analysis
    if project.wrapping.sites:
        return  # DataParallel is what such a script falls back to in one process
    calls = [(node, scope) for node, scope in reached_nodes(analysis) if isinstance(node, ast.Call)]
    for call, scope in calls:
        if module_run(analysis, call, scope) is not None:
            edits = run_plainly(analysis, call, scope)
            refusal = "" if edits else "it cannot be told what data_parallel gives to the module; write module(inputs)"
            yield found(CODE, scope.source, call, MESSAGE, HELP, edits, refusal)
    wrapping = [(c, scope, added_to_wrapper(analysis, c, scope)) for c, scope in calls if c.args]
    wrapping = [(call, scope, more) for call, scope, more in wrapping if more is not None]
    if not wrapping:
        return
    insisting = list(_insisting(project))
    going = {scope.source.statement(c) for c, scope, _ in wrapping if _says_x_is_x(scope.source, c)}
    going |= {scope.source.statement(node) for node, scope in insisting}
    for call, scope, more in wrapping:
        refusal = f"{scope.source.segment(call.func)} is more than DataParallel: {', '.join(more)}" if more else ""
        edits = [] if refusal else _without(project, scope.source, call, going)
        yield found(CODE, scope.source, call, MESSAGE, HELP, edits, refusal)
    for node, scope in insisting:
        statement = scope.source.statement(node)
        edits = remove(scope.source, statement, going) if isinstance(statement, ast.Expr) else []
        refusal = "" if edits else "this works on DataParallel alone, which is to go"
        yield found(CODE, scope.source, node, "without DataParallel this fails", HELP, edits, refusal)
    yield from _first_children(project)
    homes = {home for model in project.models for home in ({model.home} | upstream(analysis, model.home))}
    for node, scope in reached_nodes(analysis):
        if not isinstance(node, ast.Attribute) or node.attr != "module":
            continue
        if homes_of(analysis, node.value, scope) & homes and not _is_asked_for(analysis, node, scope):
            _, inner_end = scope.source.span(node.value)
            _, end = scope.source.span(node)
            edits = [Edit(scope.source, inner_end, end, "")]
            yield found(CODE, scope.source, node, "without DataParallel there is no .module", HELP, edits)


def _first_children(project: Project) -> Iterator[Finding]:
    """Yield `next(model.children())`, which is the model itself only as long as it is wrapped."""
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Call):
            continue
        taken = node.args[0].func
        if "next" not in project.analysis.called(node, scope) or not isinstance(taken, ast.Attribute):
            continue
        if taken.attr == "children" and project.analysis.named(taken.value, scope) & WRAPPERS:
            refusal = "next(model.children()) depends on DataParallel; write model.module"
            yield found(CODE, scope.source, node, "without DataParallel this is another module", HELP, refusal=refusal)


def _insisting(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield the calls of functions that say `assert isinstance(model, DataParallel)`: they are for nothing else."""
    for node, scope in reached_nodes(project.analysis):
        asked = node.test if isinstance(node, ast.Assert) else None
        if not isinstance(asked, ast.Call) or len(asked.args) != 2:
            continue
        if project.analysis.named(asked.args[1], scope) & WRAPPERS:
            sites = project.analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) else []
            yield from ((site.call, site.scope) for site in sites)
            if not sites:
                yield node, scope


def _without(project: Project, source: Source, call: ast.Call, going: set[ast.stmt]) -> list[Edit]:
    """Return edits that leave what is wrapped; a statement that then says `x = x` goes, and an `if` around it."""
    statement = source.statement(call)
    if statement not in going:
        return [replace(source, call, source.segment(call.args[0]))]
    parent = source.parents[statement]
    if isinstance(parent, ast.If) and parent.body == [statement] and _is_plain_else(project, source, parent):
        return leave_else(source, parent)
    return remove(source, statement, going)


def _says_x_is_x(source: Source, call: ast.Call) -> bool:
    """Return whether a statement says nothing without the wrapper: `model = DataParallel(model)`."""
    statement = source.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    return [source.segment(target) for target in statement.targets] == [source.segment(call.args[0])]


def _is_plain_else(project: Project, source: Source, node: ast.If) -> bool:
    """Return whether what is done without DataParallel can take the place of an `if`: nothing in it is changed."""
    if not node.orelse or is_elif(source, node) or is_elif(source, node.orelse[0]):
        return False
    if not all(has_own_lines(source, statement) for statement in node.orelse):
        return False
    inside = {part for statement in node.orelse for part in ast.walk(statement)}
    return not any(output.call in inside and output.kind != PRINT for output in project.outputs)


def _is_asked_for(analysis: Analysis, taken: ast.Attribute, scope: Scope) -> bool:
    """Return whether the code asks what an object is, or has, before it takes `.module` of it."""
    tests = [outer.test for outer in scope.source.ancestors(taken) if isinstance(outer, (ast.If, ast.IfExp))]
    return any(
        analysis.called(part, scope) & ASKING
        and homes_of(analysis, part.args[0], scope) & homes_of(analysis, taken.value, scope)
        for test in tests
        for part in ast.walk(test)
        if isinstance(part, ast.Call) and part.args
    )
