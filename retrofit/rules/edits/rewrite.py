"""The texts of a project's files after the edits of findings."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from retrofit.analysis.edits import Edit, EditConflict, apply_edits
from retrofit.rules.finding import Finding
from retrofit.training import Project, Source
from retrofit.training.placement import import_edit, runtime_name

NAME = "rd"  # of the runtime in a converted text


@dataclass(frozen=True)
class ChangedFile:
    """A file of the user's project before and after."""

    source: Source
    text: str

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def data(self) -> bytes:
        """The new content as bytes, in the file's own encoding."""
        mark = b"\xef\xbb\xbf" if self.source.has_bom else b""
        encoding = "utf-8" if self.source.has_bom else self.source.encoding
        return mark + self.text.encode(encoding)

    @property
    def uses_runtime(self) -> bool:
        """Whether the runtime's name is in the new text more often than in the old one."""
        return len(places_of_name(_parsed(self.source, self.text))) > len(places_of_name(self.source.tree))


def changed_files(project: Project, findings: Iterable[Finding]) -> list[ChangedFile]:
    """Return the files that edits change, each with the import of the runtime that it needs.

    Raises EditConflict when two rules want to change the same text, which is an error of the rules.
    """
    edits: dict[Source, list[Edit]] = defaultdict(list)
    for finding in findings:
        for edit in finding.edits:
            edits[edit.source].append(edit)
    return [_changed(project, source, changes) for source, changes in edits.items()]


def _changed(project: Project, source: Source, changes: list[Edit]) -> ChangedFile:
    file = ChangedFile(source, apply_edits(source, changes))
    if not file.uses_runtime or runtime_name(project.modules, source) == NAME:
        return file
    file = ChangedFile(source, apply_edits(source, [runtime_import(source, changes, project.runtime), *changes]))
    _parsed(source, file.text)
    return file


def runtime_import(source: Source, changes: list[Edit], runtime: str) -> Edit:
    """Return the edit that imports the module `runtime` before the first use of its name in the changes."""
    first_use = min(edit.start for edit in changes if f"{NAME}." in edit.text)
    return import_edit(source, f"import {runtime} as {NAME}", before=first_use)


def places_of_name(tree: ast.AST) -> list[ast.Name]:
    """Return where the name of the runtime is used in a file."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == NAME]


def after(project: Project, files: Iterable[ChangedFile]) -> Project:
    """Return a project as it is with its files changed."""
    return project.with_texts({file.path: file.data for file in files})


def _parsed(source: Source, text: str) -> ast.Module:
    try:
        return ast.parse(text, source.name)
    except SyntaxError as error:
        place = f"{source.name}:{error.lineno}"
        raise EditConflict(f"{place}: the changed file is not valid Python; this is an error of retrofit") from error
