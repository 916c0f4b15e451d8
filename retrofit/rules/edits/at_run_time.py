"""Refusals of what a training can do without: an error at run time, in several processes, in place of no conversion."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import replace

from retrofit.analysis.edits import Edit, block_of, insert_before
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.optional import is_optional
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.finding import Finding
from retrofit.rules.refusals.kinds import KINDS
from retrofit.training import Project
from retrofit.training.torch_api.runtime import ONE_PROCESS_ONLY

FUNCTION = "rd.process_group.one_process_only"
INSIDE = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension)  # what decides whether a part of a statement runs


def refused_where_needed(project: Project, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with refusals as errors at run time, but for those of which every branch of an `if` has one."""
    pairs = [(finding, refused_at_run_time(project, finding)) for finding in findings]
    places = {finding.node for finding, later in pairs if later is not finding and finding.node is not None}
    return [finding if later is finding or _is_needed(project, finding, places) else later for finding, later in pairs]


def _is_needed(project: Project, finding: Finding, places: set[ast.AST]) -> bool:
    """Return whether a training comes to one of the places whatever its options say, as through this one."""
    node, source = finding.node, finding.source
    assert node is not None
    assert source is not None
    scope = project.analysis.scope_at(source, node)
    for outer in source.ancestors(node):
        if isinstance(outer, ast.If) and _comes_to([outer], places):
            return not is_optional(project.analysis, outer, scope, _ways(project))
        if outer is scope.node:
            return False
    return False


def _comes_to(block: list[ast.stmt], places: set[ast.AST]) -> bool:
    """Return whether a block comes to one of the places in every branch that it may take."""
    for statement in block:
        if isinstance(statement, ast.If):
            if _comes_to(statement.body, places) and _comes_to(statement.orelse, places):
                return True
        elif not places.isdisjoint(walk(statement)):
            return True
    return False


def _ways(project: Project) -> list[list[ast.AST]]:
    return [[frame.node for frame in path.frames] for path in project.paths]


def refused_at_run_time(project: Project, finding: Finding) -> Finding:
    """Return a refusal as an error at run time, where the training can do without the place; else as it is."""
    node, source = finding.node, finding.source
    kind = KINDS.get(finding.kind)
    if not finding.refusal or kind is None or not kind.is_local or node is None or source is None:
        return finding
    scope = project.analysis.scope_at(source, node)
    is_chosen = is_function(node)
    if not is_chosen and not is_left_out(project, node, scope):
        return finding
    edits = _edits(scope, node, finding.refusal, is_chosen)
    message = f"several processes end with an error here: {finding.refusal}"
    return replace(finding, message=message, edits=edits, refusal="") if edits else finding


def is_left_out(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether the training can do without a place."""
    return is_optional(project.analysis, node, scope, _ways(project))


def is_refused_at_run_time(finding: Finding) -> bool:
    """Return whether the edits of a finding are an error at run time in place of a refusal."""
    return any(FUNCTION in edit.text for edit in finding.edits)


def is_function(node: ast.AST) -> bool:
    """Return whether a place is the name of a function that something else chooses and calls."""
    return isinstance(node, (ast.Name, ast.Attribute))


def is_refused_before(project: Project, finding: Finding) -> bool:
    """Return whether an error at run time comes before a place already."""
    node, source = finding.node, finding.source
    if node is None or source is None:
        return False
    scope = project.analysis.scope_at(source, node)
    for outer in (node, *source.ancestors(node)):
        if isinstance(outer, ast.stmt):
            block = block_of(source, outer)
            before = [one.value for one in block[: block.index(outer)] if isinstance(one, ast.Expr)]
        else:
            before = list(outer.values) if isinstance(outer, ast.BoolOp) else []
        if any(isinstance(c, ast.Call) and project.analysis.called(c, scope) & {ONE_PROCESS_ONLY} for c in before):
            return True
        if outer is scope.node:
            return False
    return False


def _edits(scope: Scope, node: ast.AST, reason: str, is_chosen: bool) -> tuple[Edit, ...]:
    source, text = scope.source, json.dumps(reason, ensure_ascii=False)
    if is_chosen:
        return _around(source, node, f"{FUNCTION}({text}, ")
    statement = source.statement(node)
    if isinstance(scope.node, ast.Lambda) or _is_part_of_choice(source.ancestors(node), node):
        return _around(source, node, f"({FUNCTION}({text}) or ")
    start, _ = source.span(statement)
    if source.text.startswith("elif", start):
        return ()
    return (insert_before(source, statement, [f"{FUNCTION}({text})"]),)


def _around(source: Source, node: ast.AST, before: str) -> tuple[Edit, ...]:
    """Surround a node, and what other rules surround it with."""
    start, end = source.span(node)
    return Edit(source, start, start, before, order=-1), Edit(source, end, end, ")", order=1)


def _is_part_of_choice(ancestors: Iterable[ast.AST], node: ast.AST) -> bool:
    for outer in ancestors:
        if isinstance(node, ast.stmt):
            return False
        if isinstance(outer, INSIDE):
            return True
        node = outer
    return False
