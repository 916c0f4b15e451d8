"""What a conversion would do: the changed files, the findings behind the changes, and what cannot be converted."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.project import Project, Source
from retrofit.project.edits import Edit, EditConflict, apply_edits
from retrofit.project.placement import import_edit, imports_name
from retrofit.rules import Finding, find_all, not_convertible
from retrofit.rules.finding import found

RUNTIME, NAME = "retrofit.distributed", "rd"


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


@dataclass
class Conversion:
    """The changes to the user's own files. Nothing is to be written when there are refusals."""

    project: Project
    findings: list[Finding] = field(default_factory=list)
    files: list[ChangedFile] = field(default_factory=list)

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.refusal]


def plan_conversion(project: Project) -> Conversion:
    """Return what has to change in a project.

    Raises EditConflict when two rules want to change the same text, which is an error of the rules.
    """
    conversion = Conversion(project)
    if is_converted(project):
        return conversion
    conversion.findings = list(find_all(project))
    edits: dict[Source, list[Edit]] = defaultdict(list)
    for finding in conversion.findings:
        for edit in finding.edits:
            edits[edit.source].append(edit)
    for source, changes in edits.items():
        text = apply_edits(source, changes)
        if len(_places_of_name(_parsed(source, text))) > len(_places_of_name(source.tree)):
            conversion.findings += _other_meanings(project, source)
            text = apply_edits(source, [_import_edit(source, changes), *changes])
            _parsed(source, text)
        conversion.files.append(ChangedFile(source, text))
    conversion.files.sort(key=lambda file: (file.source is not project.entry, file.source.name))
    return conversion


def _import_edit(source: Source, changes: list[Edit]) -> Edit:
    first_use = min(edit.start for edit in changes if f"{NAME}." in edit.text)
    return import_edit(source, f"import {RUNTIME} as {NAME}", before=first_use)


def is_converted(project: Project) -> bool:
    """Return whether a project uses the runtime already."""
    return any(imports_name(source, RUNTIME) for source in project.sources)


def _places_of_name(tree: ast.AST) -> list[ast.Name]:
    """Return where the name of the runtime stands in a file."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == NAME]


def _other_meanings(project: Project, source: Source) -> list[Finding]:
    """Return a refusal for a file in which the name of the runtime stands for something else already."""
    scopes = project.analysis.module_scopes[source].walk()
    places = [binding.node for scope in scopes for binding in scope.bindings.get(NAME, [])]
    message, help = "the name of the runtime is taken", not_convertible.HELP
    refusal = f"{NAME} is something else here; give that another name"
    return [found(not_convertible.CODE, source, place, message, help, refusal=refusal) for place in places[:1]]


def _parsed(source: Source, text: str) -> ast.Module:
    try:
        return ast.parse(text, source.name)
    except SyntaxError as error:
        place = f"{source.name}:{error.lineno}"
        raise EditConflict(f"{place}: the changed file is not valid Python; this is an error of retrofit") from error
