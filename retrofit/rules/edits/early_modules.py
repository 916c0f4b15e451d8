"""Modules of a project whose import needs the process group: it makes a loader, a model, data or a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.main_guard import is_under_main_of_another
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.files.own_names import named_by_import
from retrofit.training.placement import after_variable


def import_of_early(project: Project) -> ast.stmt | None:
    """Return the first import of a module of the project in the script, where one of them needs the process group."""
    return project.analysis.fact("import before which the group is joined", lambda: _find(project))


def _find(project: Project) -> ast.stmt | None:
    if not any(source is not project.entry for source in _made_by_import(project)):
        return None
    return first_import(project)


def first_import(project: Project) -> ast.stmt | None:
    """Return the first import of a module of the project in the script."""
    for statement in project.entry.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) and any(_files(project, statement)):
            return statement
    return None


def _made_by_import(project: Project) -> Iterator[Source]:
    """Yield the files that get a line for a loader, a model, data or a name that all read, where they are imported."""
    loaders = [each.variable for each in project.loaders if any(use.role == TRAIN for use in each.uses)]
    for variable in [*(model.variable for model in project.models), *loaders]:
        place = after_variable(project.analysis, variable, project.paths) if variable is not None else None
        if place is not None and not project.analysis.scope_at(*place).is_function:
            yield place[0]
    yield from _prepared_by_import(project)
    named = named_by_import(project)
    yield from (source for source in project.sources if any(call in source.parents for call in named))


def _files(project: Project, statement: ast.Import | ast.ImportFrom) -> Iterator[bool]:
    """Yield for each name that an import asks for whether a file of the project has it."""
    modules, level = project.analysis.modules, getattr(statement, "level", 0)
    base = getattr(statement, "module", None)
    names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [base or ""]
    if isinstance(statement, ast.ImportFrom) and base is None:
        names = [alias.name for alias in statement.names]
    yield from (modules.find(name, level, project.entry) is not None for name in names)


def _prepared_by_import(project: Project) -> Iterator[Source]:
    """Yield the files that make what is missing while they are imported, themselves or by what they call."""
    for preparation in project.preparations:
        for node, scope in call_chains(project.analysis, preparation.statements[0], preparation.scope):
            if scope.is_run_by_import and not is_under_main_of_another(project.analysis, scope, node):
                yield scope.source
