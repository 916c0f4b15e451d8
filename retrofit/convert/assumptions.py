"""Assumptions of a conversion: what could not be told from the source, and the lines that a run must come to."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from retrofit.analysis.files.source import Place, Source
from retrofit.rules.edits.rewrite import ChangedFile
from retrofit.rules.finding import Finding
from retrofit.rules.refusals.kinds import KINDS
from retrofit.training import Project
from retrofit.training.losses.reductions.kinds import ROWS, SHARE, UNKNOWN
from retrofit.training.losses.reductions.reduction import backward_kind

IS_MEAN = "the loss is a mean over the samples of its batch"
UNREAD = frozenset({UNKNOWN, ROWS, SHARE})  # backward starts at one number, so something has reduced the rows
OF_SUMS = frozenset({"RF301", "RF302", "RF307", "RF309"})


@dataclass(frozen=True)
class Assumption:
    """What is assumed at a place of the script as it was.

    `lines`, from 1: a run that comes to one of them shows whether it holds. `codes`: what `verify` then finds, if not.
    """

    place: Place
    text: str
    source: Source
    lines: tuple[int, ...]
    codes: frozenset[str]

    def __str__(self) -> str:
        return f"{self.place.path}:{self.place.line}: {self.text}"


def under_assumptions(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in which a refusal that an assumption makes unnecessary is none."""
    return [_assumed(finding) for finding in findings]


def _assumed(finding: Finding) -> Finding:
    text = KINDS[finding.kind].assumption if finding.refusal and finding.kind in KINDS else ""
    return replace(finding, refusal="", assumption=text) if text else finding


def assumptions_of(project: Project, findings: Iterable[Finding]) -> list[Assumption]:
    """Return what is assumed by findings, and about losses whose reduction cannot be read."""
    found = []
    for finding in findings:
        if finding.assumption and finding.node is not None and finding.source is not None:
            lines, codes = _lines(finding.source, finding.node), frozenset([finding.code])
            found.append(Assumption(finding.place, finding.assumption, finding.source, lines, codes))
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        if isinstance(call, ast.Call) and backward_kind(project, call, scope).parts & UNREAD:
            source = scope.source
            found.append(Assumption(source.place(call), IS_MEAN, source, _lines(source, call), OF_SUMS))
    return list(dict.fromkeys(found))


def _lines(source: Source, node: ast.AST) -> tuple[int, ...]:
    """Return the lines by which a run shows whether an assumption about a node holds.

    Of a test it is what one branch leaves out or does; errors that are suppressed are shown by none.
    """
    if isinstance(node, ast.With):
        return ()
    if isinstance(node, ast.If):
        return tuple(block[0].lineno for block in (node.body, node.orelse) if block)[:1]
    return (source.statement(node).lineno,)


def lines_after(files: Sequence[ChangedFile], assumption: Assumption) -> tuple[int, ...]:
    """Return the lines of an assumption in the converted text of its file."""
    text = next((file.text for file in files if file.source is assumption.source), assumption.source.text)
    before, after = assumption.source.text.splitlines(), text.splitlines()
    numbers = {}
    for _, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        numbers.update({old: min(j + old - i, max(j, j_end - 1)) + 1 for old in range(i, i_end)})
    return tuple(numbers[line - 1] for line in assumption.lines)
