"""RF208 data-parallel: one process drives several GPUs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.data_parallel import WRAPPERS, added_to_wrapper, module_run, run_plainly
from retrofit.project.edits import Edit, delete_statement, has_own_lines, leave_else, replace
from retrofit.project.homes import homes_of, upstream
from retrofit.project.outputs import PRINT
from retrofit.project.placement import block_of
from retrofit.project.reach import reached_nodes
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
MESSAGE = "DataParallel is for one process that drives all GPUs"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # it is what the script does when it is not started as several processes
    analysis = project.analysis
    if project.wrapping.sites:
        return  # DataParallel is what such a script falls back to in one process
    wrapped = False
    for node, scope in reached_nodes(analysis):
        if not isinstance(node, ast.Call):
            continue
        if module_run(analysis, node, scope) is not None:
            edits = run_plainly(analysis, node, scope)
            refusal = "" if edits else "it cannot be told what data_parallel gives to the module; write module(inputs)"
            yield found(CODE, scope.source, node, MESSAGE, HELP, edits, refusal)
        more = added_to_wrapper(analysis, node, scope)
        if node.args and more is not None:
            wrapped = True
            refusal = f"{scope.source.segment(node.func)} is more than DataParallel: {', '.join(more)}" if more else ""
            edits = [] if refusal else _without(project, scope.source, node)
            yield found(CODE, scope.source, node, MESSAGE, HELP, edits, refusal)
    if not wrapped:
        return
    yield from _first_children(project)
    yield from _insisting(project)
    homes = {home for model in project.models for home in ({model.home} | upstream(analysis, model.home))}
    for node, scope in reached_nodes(analysis):
        if not isinstance(node, ast.Attribute) or node.attr != "module" or _is_guarded(scope.source, node):
            continue
        if homes_of(analysis, node.value, scope) & homes:
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


def _insisting(project: Project) -> Iterator[Finding]:
    """Yield `assert isinstance(model, DataParallel)`, which ends the script as soon as it is not."""
    for node, scope in reached_nodes(project.analysis):
        asked = node.test if isinstance(node, ast.Assert) else None
        if not isinstance(asked, ast.Call) or len(asked.args) != 2:
            continue
        if project.analysis.named(asked.args[1], scope) & WRAPPERS:
            refusal = "this function is for DataParallel alone; without it, it is not to be called"
            yield found(CODE, scope.source, node, "without DataParallel this fails", HELP, refusal=refusal)


def _without(project: Project, source: Source, call: ast.Call) -> list[Edit]:
    """Return an edit that leaves what is wrapped; a statement that then says `x = x` goes, and an `if` around it."""
    statement = source.statement(call)
    inner = source.segment(call.args[0])
    says_x_is_x = (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and [source.segment(target) for target in statement.targets] == [inner]
    )
    if not says_x_is_x:
        return [replace(source, call, inner)]
    parent = source.parents[statement]
    if isinstance(parent, ast.If) and parent.body == [statement] and _is_plain_else(project, source, parent):
        return leave_else(source, parent)
    return [_remove(source, statement)]


def _is_plain_else(project: Project, source: Source, node: ast.If) -> bool:
    """Return whether what is done without DataParallel can take the place of an `if`: nothing in it is changed."""
    if not node.orelse or _is_elif(source, node) or _is_elif(source, node.orelse[0]):
        return False
    if not all(has_own_lines(source, statement) for statement in node.orelse):
        return False
    inside = {part for statement in node.orelse for part in ast.walk(statement)}
    return not any(output.call in inside and output.kind != PRINT for output in project.outputs)


def _remove(source: Source, statement: ast.stmt) -> Edit:
    block = block_of(source, statement)
    if not has_own_lines(source, statement):
        return replace(source, statement, "pass")
    if len(block) > 1:
        return delete_statement(source, statement)
    parent = source.parents[statement]
    is_whole_if = isinstance(parent, ast.If) and block is parent.body and not parent.orelse
    if is_whole_if and not _is_elif(source, parent) and len(block_of(source, parent)) > 1:  # type: ignore[arg-type]
        return delete_statement(source, parent)  # type: ignore[arg-type]
    return replace(source, statement, "pass")


def _is_elif(source: Source, node: ast.AST) -> bool:
    start, _ = source.span(node)
    return source.text.startswith("elif", start)


def _is_guarded(source: Source, node: ast.AST) -> bool:
    """Return whether the code asks for the wrapper before it takes `.module`."""
    for outer in source.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp)):
            text = source.segment(outer.test)
            if "hasattr" in text or "isinstance" in text:
                return True
    return False
