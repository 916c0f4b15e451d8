"""What a conversion would do: the changed files, the findings behind the changes, and what cannot be converted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.project import Project, Source
from retrofit.project.edits import Edit, EditConflict, apply_edits
from retrofit.project.placement import import_edit, imports_name
from retrofit.rules import Finding, find_all

RUNTIME = "retrofit.distributed"


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
        uses = [edit.start for edit in changes if "rd." in edit.text]
        if uses:
            changes = [import_edit(source, f"import {RUNTIME} as rd", before=min(uses)), *changes]
        conversion.files.append(ChangedFile(source, _parsed(source, apply_edits(source, changes))))
    conversion.files.sort(key=lambda file: (file.source is not project.entry, file.source.name))
    return conversion


def is_converted(project: Project) -> bool:
    """Return whether a project uses the runtime already."""
    return any(imports_name(source, RUNTIME) for source in project.sources)


def _parsed(source: Source, text: str) -> str:
    try:
        compile(text, source.name, "exec", dont_inherit=True, flags=0x400)  # ast.PyCF_ONLY_AST
    except SyntaxError as error:
        place = f"{source.name}:{error.lineno}"
        raise EditConflict(f"{place}: the changed file is not valid Python; this is an error of retrofit") from error
    return text
