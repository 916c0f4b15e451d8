"""The texts of a project's files after the edits of findings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from retrofit.analysis.edits import Edit, EditConflict, apply_edits
from retrofit.analysis.nodes import walk
from retrofit.rules.finding import Finding
from retrofit.training import Project, Source
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

    @property
    def uses_runtime(self) -> bool:
        """Whether the runtime's name is in the new text more often than in the old one."""
        tree, names = _parsed(self.source, self.text), (NAME, OTHER_NAME)
        nodes = list(walk(tree))
        return any(len(places_of_name(nodes, name)) > len(places_of_name(self.source.nodes, name)) for name in names)


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
    changes = with_name(changes, name)
    file = ChangedFile(source, apply_edits(source, changes))
    if not file.uses_runtime or runtime_name(project.modules, source) == name:
        return file
    line = runtime_import(source, changes, project.runtime, name)
    file = ChangedFile(source, apply_edits(source, [line, *changes]))
    _parsed(source, file.text)
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


def places_of_name(nodes: Iterable[ast.AST], name: str = NAME) -> list[ast.Name]:
    """Return where the name of the runtime is used among the nodes of a file."""
    return [node for node in nodes if isinstance(node, ast.Name) and node.id == name]


def after(project: Project, files: Iterable[ChangedFile]) -> Project:
    """Return a project as it is with its files changed."""
    return project.with_texts({file.path: file.data for file in files})


def _parsed(source: Source, text: str) -> ast.Module:
    try:
        return ast.parse(text, source.name)
    except SyntaxError as error:
        place = f"{source.name}:{error.lineno}"
        raise EditConflict(f"{place}: the changed file is not valid Python; this is an error of retrofit") from error
