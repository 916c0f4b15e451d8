"""Uses of CUDA before the processes have joined, in modules and defaults: until then each has GPU 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.main_guard import is_main_guard, is_under_main_of_another
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, place_of
from retrofit.rules.edits.early_modules import first_import, import_of_early
from retrofit.rules.edits.early_names import is_early
from retrofit.training import Project
from retrofit.training.torch_api.runtime import CHOOSE_GPU


def early_gpu(project: Project) -> tuple[Source, ast.Call, ast.stmt] | None:
    """Return the first call that uses CUDA too early, and the statement of the script before which it is run."""
    if not project.paths or project.distribution.joins or project.calls_any(CHOOSE_GPU):
        return None
    found = [(place_of(before), source, call, before) for source, call, before in _uses(project)]
    if not found:
        return None
    _, source, call, before = min(found, key=lambda use: use[0])
    return source, call, before


def _uses(project: Project) -> Iterator[tuple[Source, ast.Call, ast.stmt]]:
    analysis, imported = project.analysis, first_import(project)
    is_imported = import_of_early(project) is None  # else the group is joined before that
    for call, scope in reached_calls(analysis):
        if not scope.is_run_by_import or not _uses_cuda(project, call, scope):
            continue
        source = scope.source
        if source is project.entry:
            statement = _in_block(source, call)
            if is_early(project, statement, scope.module):
                yield source, call, statement
        elif is_imported and imported is not None and not is_under_main_of_another(analysis, scope, call):
            yield source, call, imported


def _in_block(source: Source, call: ast.Call) -> ast.stmt:
    """Return the statement of the script's own block that runs a call, or of `if __name__ == "__main__":`."""
    statement = source.statement(call)
    for outer in source.ancestors(statement):
        if is_main_guard(outer):
            break
        statement = outer if isinstance(outer, ast.stmt) else statement
    return statement


def _uses_cuda(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call puts something on the current GPU: x.cuda(), x.to(device), torch.ones(2, device=device)."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "cuda":
        return not call.args
    given = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
    given += call.args[:1] if method == "to" else []
    return "torch.device" not in project.analysis.called(call, scope) and any(
        _is_cuda(project, part, scope) for part in given
    )


def _is_cuda(project: Project, device: ast.expr, scope: Scope) -> bool:
    found = [origin.node for origin in origins(project.analysis, [Origin(device, scope)])]
    texts = [part.value for node in found for part in walk(node) if isinstance(part, ast.Constant)]
    return "cuda" in texts
