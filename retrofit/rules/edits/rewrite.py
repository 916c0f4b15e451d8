"""The texts of a project's files after the edits of findings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from retrofit.analysis.edits import Edit, EditConflict, apply_edits
from retrofit.analysis.files.source import read_source
from retrofit.rules.finding import Finding
from retrofit.training import Project, Source, SourceError
from retrofit.training.placement import import_edit, runtime_name

NAME = "rd"  # of the runtime in a converted text
OTHER_NAME = "multigpu"  # of the runtime in a file where that has another meaning
_USES = re.compile(rf"(?<![\w.]){NAME}\.")


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

    @cached_property
    def parsed(self) -> Source:
        """The new text as a file of the project. Raises SourceError where it is not Python."""
        return read_source(self.path, self.source.name, self.data)

    def uses_more(self, name: str) -> bool:
        """Return whether a name is in the new text more often than in the old one."""
        before, now = (
            [node for node in source.nodes.of(ast.Name) if node.id == name] for source in (self.source, self.parsed)
        )
        return len(now) > len(before)


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
    name = name_of_runtime(project, source)
    try:
        return changed_file(project, source, with_name(changes, name), name)
    except SourceError as error:
        raise EditConflict(f"{error}; in the changed text, an error of retrofit") from error


def changed_file(project: Project, source: Source, changes: list[Edit], name: str) -> ChangedFile:
    """Return a file after edits that call the runtime `name`; its import is added to them where they need it.

    Raises EditConflict where two want to change the same text, SourceError where the new text is not Python.
    """
    if runtime_name(project.modules, source) != name and any(f"{name}." in edit.text for edit in changes):
        changes.insert(0, runtime_import(source, changes, project.runtime, name))
        file = ChangedFile(source, apply_edits(source, changes))
        if file.uses_more(name):
            return file
        del changes[0]  # the name is in a text alone
    file = ChangedFile(source, apply_edits(source, changes))
    assert file.parsed
    return file


def name_of_runtime(project: Project, source: Source) -> str:
    """Return the name by which a file uses the runtime: another one where its own has another meaning there."""
    imported = runtime_name(project.modules, source)
    if imported in (NAME, OTHER_NAME):
        return imported
    return OTHER_NAME if other_meanings(project, source, NAME) else NAME


def with_name(changes: list[Edit], name: str) -> list[Edit]:
    """Return edits that call the runtime `name`."""
    return changes if name == NAME else [replace(edit, text=_USES.sub(f"{name}.", edit.text)) for edit in changes]


def other_meanings(project: Project, source: Source, name: str) -> list[ast.AST]:
    """Return the places that give `name` another meaning in a file."""
    scopes = project.analysis.module_scopes[source].walk()
    return [binding.node for scope in scopes for binding in scope.bindings.get(name, [])]


def runtime_import(source: Source, changes: list[Edit], runtime: str, name: str) -> Edit:
    """Return the edit that imports the module `runtime` before the first use of its name in the changes."""
    first_use = min(edit.start for edit in changes if f"{name}." in edit.text)
    line = f"import {runtime}" if runtime == name else f"import {runtime} as {name}"
    return import_edit(source, line, before=first_use)


def after(project: Project, files: Iterable[ChangedFile]) -> Project:
    """Return a project as it is with its files changed."""
    return project.with_texts({file.path: file.data for file in files}, {file.path: file.parsed for file in files})
