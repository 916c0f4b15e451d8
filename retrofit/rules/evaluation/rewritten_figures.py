"""Figures of one rank, looked for when all other rules have had their say: what they reduce is none any more."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from retrofit.rules.edits.resolve import placed
from retrofit.rules.edits.rewrite import ChangedFile, after, changed_files
from retrofit.rules.finding import Finding
from retrofit.training import Place, Project

from . import figure_not_reduced, figure_of_one_rank

MOST_ROUNDS = 6  # a decision that all ranks take together opens the way for what is computed after it


@dataclass
class Rewritten:
    """A project after the edits of all rules, with what the last rules have found on the way."""

    project: Project
    texts: dict[Path, str] = field(default_factory=dict)
    reduced: list[Finding] = field(default_factory=list)  # in the places of the given project
    listed: list[Finding] = field(default_factory=list)  # in the places of the new texts


def rewritten(project: Project, files: list[ChangedFile], reduces: bool = True) -> Rewritten:
    """Reduce the figures that are of one rank in a project with some files changed, and list those that are left.

    Without `reduces` all of them are listed.
    """
    given = {source.path: source.text for source in project.sources}
    names = {source.path: source.name for source in project.sources}
    result = Rewritten(project)
    _take(result, files)
    decided: list[Finding] = []
    for _ in range(MOST_ROUNDS if reduces else 0):
        asked = placed(result.project, figure_not_reduced.find(result.project))
        asked = [finding for finding in asked if finding.edits]
        if not asked:
            asked = placed(result.project, figure_of_one_rank.decided_by_main(result.project))
            decided += [replace(finding, edits=()) for finding in asked]
        if not asked:
            break
        lines = {names[path]: _lines(given[path], text) for path, text in result.texts.items()}
        result.reduced += [replace(_moved(finding, lines), edits=finding.edits) for finding in asked]
        _take(result, changed_files(result.project, asked))
    left = figure_not_reduced.find(result.project)  # in places that some ranks do not come to
    result.listed = [*figure_of_one_rank.find(result.project), *decided]
    result.listed += [replace(f, message=f"rank 0's share: {f.message}", edits=()) for f in left]
    return result


def found_figures(project: Project, findings: Iterable[Finding]) -> list[Finding]:
    """Return the figures of one rank that are left after the edits of findings, in the places of a project."""
    result = rewritten(project, changed_files(project, findings))
    reduced = [replace(finding, edits=(), is_reduced=True) for finding in result.reduced]
    return [*reduced, *in_places_of(project, result.texts, result.listed)]


def in_places_of(project: Project, texts: Mapping[Path, str], findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the changed texts of a project at the lines that theirs were before, without edits."""
    sources = {source.path: source for source in project.sources}
    lines = {sources[path].name: _lines(sources[path].text, text) for path, text in texts.items()}
    return [_moved(finding, lines) for finding in findings]


def _take(result: Rewritten, files: list[ChangedFile]) -> None:
    if files:
        result.texts.update({file.path: file.text for file in files})
        result.project = after(result.project, files)


def _moved(finding: Finding, lines: dict[str, list[int]]) -> Finding:
    """Return a finding at the line that its own was before the edits, without the edits."""
    place = finding.place
    known = lines.get(place.path)
    line = known[min(place.line, len(known)) - 1] if known else place.line
    return replace(finding, place=Place(place.path, line, place.column), edits=())


def _lines(before: str, text: str) -> list[int]:
    """Return for each line of a changed text the number of the line that it was."""
    old, new = before.splitlines(), text.splitlines()
    found: list[int] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for _, first, last, start, end in matcher.get_opcodes():
        found += [min(first + number, max(last - 1, first)) + 1 for number in range(end - start)]
    return [min(number, max(len(old), 1)) for number in found] or [1]
