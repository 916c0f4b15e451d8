"""Candidates for a fault: the edits of the rules, and those of retrofit/prove/repair/fixes, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from retrofit.analysis.edits import Edit, EditConflict, apply_edits
from retrofit.rules.edits.rewrite import NAME, ChangedFile, changed_file, name_of_runtime, with_name
from retrofit.rules.registry import find_hazards
from retrofit.training import Project, Source, SourceError
from retrofit.verify.report.faults import Fault

from .fixes import BY_CHECK, BY_CODE
from .guard import removes_output
from .script import Candidate, Script

PLACE = re.compile(r"([^\s:\"'`(),]+\.py):(\d+)")
SAME_LOOK = {"RF109": ("RF108",), "RF108": ("RF109",), "RF401": ("RF407",), "RF211": ("RF209",)}
NEAR = 3  # lines


@dataclass(frozen=True)
class Change:
    """A candidate with the texts of the files that it changes."""

    text: str
    files: tuple[ChangedFile, ...]

    @property
    def data(self) -> dict[Path, bytes]:
        return {file.path: file.data for file in self.files}


def changes_for(project: Project, fault: Fault, places: str) -> Iterator[Change]:
    """Yield what may repair a fault, each text once; first what is about a line that the fault names."""
    scripts = _scripts(project)
    codes = [code for code in (fault.verdict.cause, *SAME_LOOK.get(fault.verdict.cause or "", ())) if code]
    named = {(path, int(line)) for path, line in PLACE.findall(places)}
    seen: set[tuple[tuple[Path, str], ...]] = set()
    groups = [[*_of_rules(project, codes[:1]), *_of_code(scripts, codes[:1])], _of_code(scripts, codes[1:])]
    checks = [fault.verdict.check, *(verdict.check for verdict in fault.explains)]
    groups.append(
        [c for check in checks for script in scripts for repair in BY_CHECK.get(check, ()) for c in repair(script)]
    )
    for group in groups:
        group.sort(key=lambda candidate: not _is_near(candidate, named))
        for candidate in group:
            change = _change(project, candidate)
            if change is None or (key := tuple((f.path, f.text) for f in change.files)) in seen:
                continue
            seen.add(key)
            yield change


def _scripts(project: Project) -> list[Script]:
    sources = [source for source in project.sources if not _is_runtime(source)]
    scripts = [Script(source) for source in sorted(sources, key=lambda source: source is not project.entry)]
    for script in scripts:
        script.others.extend(scripts)
    return scripts


def _is_runtime(source: Source) -> bool:
    return (
        source.path.name == "multigpu.py"
        or source.name.startswith("retrofit/")
        or "retrofit/distributed" in str(source.path)
    )


def _of_rules(project: Project, codes: list[str]) -> list[Candidate]:
    """Return the edits that the rules have for a code, each finding's and all together."""
    try:
        findings = [f for f in find_hazards(project) if f.code in codes and f.edits]
    except (EditConflict, SourceError):
        return []
    edits = [tuple(e for e in f.edits if isinstance(e, Edit)) for f in findings]
    known = [
        (finding, own)
        for finding, own in zip(findings, edits)
        if len(own) == len(finding.edits) and project.distribution.uses_runtime
    ]
    together = tuple(dict.fromkeys(edit for _, own in known for edit in own))
    found = [Candidate(finding.message, own) for finding, own in known]
    return [Candidate(known[0][0].message, together), *found] if known else []


def _of_code(scripts: list[Script], codes: list[str]) -> list[Candidate]:
    return [c for code in codes for repair in BY_CODE.get(code, ()) for script in scripts for c in repair(script)]


def _is_near(candidate: Candidate, named: set[tuple[str, int]]) -> bool:
    lines = [(edit.source.name, edit.source.line_of(edit.start)) for edit in candidate.edits]
    return any(path == name and abs(line - at) <= NEAR for path, at in named for name, line in lines)


def _change(project: Project, candidate: Candidate) -> Change | None:
    by_source: dict[Source, list[Edit]] = {}
    for edit in candidate.edits:
        by_source.setdefault(edit.source, []).append(edit)
    files = []
    try:
        for source, edits in by_source.items():
            known = Script(source).own_runtime
            if known or not project.distribution.uses_runtime:
                file = ChangedFile(source, apply_edits(source, with_name(list(edits), known or NAME)))
            else:
                name = name_of_runtime(project, source)
                file = changed_file(project, source, with_name(list(edits), name), name)
            if _is_by_choice(file):
                return None
            if file.text != source.text:
                files.append(file)
    except (EditConflict, SourceError):
        return None
    if not files or any(removes_output(file.source.tree, file.parsed.tree) for file in files):
        return None
    return Change(candidate.text, tuple(files))


def _is_by_choice(file: ChangedFile) -> bool:
    """Return whether a change is in a line that has a comment which takes it as it is: `# retrofit: ignore[...]`."""
    old, new = file.source.text.splitlines(), file.text.splitlines()
    return any("# retrofit: ignore" in old[line] for line in changed_lines(old, new))


def changed_lines(old: list[str], new: list[str]) -> Iterator[int]:
    for tag, start, end, _, _ in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag in ("replace", "delete"):
            yield from range(start, end)
