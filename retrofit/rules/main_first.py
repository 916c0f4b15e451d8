"""How rank 0 gets ahead of the others: neighbouring preparations go under one `with rd.main_process_first():`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from retrofit.project import Project
from retrofit.project.edits import Edit, EditConflict, insert_after, put_under
from retrofit.project.placement import after_home, block_of
from retrofit.project.preparations import Preparation
from retrofit.project.source import Source

from .joining import behind_setup

HEADER = "with rd.main_process_first():"


def main_first(project: Project) -> dict[Preparation, list[Edit]]:
    """Return the edits for each preparation; none where no group exists yet, or the lines hold other statements."""
    statements: dict[ast.stmt, Source] = {
        statement: p.scope.source for p in project.preparations for statement in p.statements if _has_group(project, p)
    }
    edits: dict[ast.stmt, list[Edit]] = {}
    ends = _ends(project)
    drawing = {statement for p in project.preparations if p.draws for statement in p.statements}
    for first, source in statements.items():
        if first in edits:
            continue
        group = _neighbours(source, first, statements, ends)
        try:
            changes = put_under(source, group, HEADER)
        except EditConflict:
            changes = []
        if changes and drawing & set(group):
            changes.append(insert_after(source, group[-1], ["rd.share_random_state()"]))
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


def _ends(project: Project) -> list[ast.stmt]:
    """Return the statements behind which a line is added, for all processes, for a loader or a model."""
    homes = [model.home for model in project.models] + [loader.home for loader in project.loaders if loader.home]
    places = [after_home(project.analysis, home, project.paths) for home in homes]
    return [place[1] for place in places if place is not None]


def _has_group(project: Project, preparation: Preparation) -> bool:
    """Return whether the processes have joined where something is prepared: not while modules are imported."""
    if preparation.scope.parent is not None or project.distribution.joins:
        return True
    source, joining, _ = behind_setup(project, None)
    is_beside = project.analysis.scope_at(source, joining) is preparation.scope
    return is_beside and preparation.statements[0].lineno >= joining.lineno
