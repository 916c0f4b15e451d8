"""The edits of a conversion that answer for a check of `verify` that failed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from retrofit.analysis.files.source import Source
from retrofit.convert.plan import Conversion
from retrofit.convert.self_check import named
from retrofit.rules.edits.rewrite import ChangedFile
from retrofit.rules.finding import Finding
from retrofit.verify.verdict import FAIL, Verdict, listed

# What a check compares is made by the edits of these rules, named by the beginnings of their codes. They are shown
# where the failed check names neither a line nor a rule that has edits.
MADE_BY: dict[str, tuple[str, ...]] = {
    "original": ("RF",),
    "launch": ("RF60",),
    "completes": (),
    "collectives": ("RF40", "RF113", "RF501"),
    "split": ("RF108", "RF10"),
    "shards": ("RF10",),
    "reshuffle": ("RF10",),
    "global_batch": ("RF10",),
    "random_streams": ("RF10", "RF605"),
    "initial_state": ("RF20", "RF605"),
    "loss": ("RF3", "RF2"),
    "gradients": ("RF3", "RF2"),
    "ranks_agree": ("RF2",),
    "parameters": ("RF3", "RF2"),
    "lr": ("RF306",),
    "batchnorm": ("RF20",),
    "communication": ("RF20",),
    "decisions": ("RF40",),
    "evaluation": ("RF11",),
    "metrics": ("RF40",),
    "logs": ("RF40", "RF50"),
    "single_writer": ("RF50",),
    "checkpoint": ("RF50",),
    "resume": ("RF50",),
    "default_mode": ("RF1", "RF3"),
    "devices": ("RF60",),
    "determinism": (),
}
PLACE = re.compile(r"([^\s:\"'`(),]+\.py):(\d+)")
MOST_LINES = 8  # of a change that is shown


@dataclass(eq=False)
class Change:
    """Neighbouring lines that a conversion has changed. `first` is their first line, from 1, in the converted file."""

    file: ChangedFile
    old: range  # of the lines before, from 0
    new: range
    codes: set[str] = field(default_factory=set)

    @property
    def first(self) -> int:
        return self.new.start + 1

    def __str__(self) -> str:
        return f"{self.file.source.name}:{self.first}: {named(self.codes)}"

    def lines(self) -> list[str]:
        """Return the lines after the change; those before it where it has only removed some."""
        text, lines, sign = (self.file.text, self.new, "+") if self.new else (self.file.source.text, self.old, "-")
        shown = [f"    {sign}{text.splitlines()[number]}" for number in lines]
        return shown if len(shown) <= MOST_LINES else [*shown[:MOST_LINES], f"    ... {len(shown) - MOST_LINES} more"]


def responsible(conversion: Conversion, verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Yield the places of the edits that may be the cause of the checks that failed, with the changed lines."""
    changes = changes_of(conversion)
    checks: dict[tuple[int, ...], list[str]] = defaultdict(list)  # by the positions of the changes that answer for them
    for verdict in (one for one in verdicts if one.status == FAIL):
        answering = changes_for(verdict, changes)
        checks[tuple(changes.index(change) for change in answering)].append(verdict.check)
    shown: set[int] = set()
    for positions, names in checks.items():
        if not positions:
            yield f"{listed(names)}: no edit of the conversion is about this; an edit may be missing"
            continue
        yield f"{listed(names)}: {'this edit answers' if len(positions) == 1 else 'these edits answer'} for it:"
        for position in positions:
            yield f"  {changes[position]}"
            yield from changes[position].lines() if position not in shown else ()
        shown.update(positions)


def changes_for(verdict: Verdict, changes: Sequence[Change]) -> list[Change]:
    """Return the changes on a line that a verdict names; else those of the rule it names; else of its subject."""
    text = " ".join(part for part in (verdict.summary, verdict.value, verdict.note) if part)
    places = [(path, int(line) - 1) for path, line in PLACE.findall(text)]
    at_places = [c for c in changes if any(c.file.source.name == path and line in c.new for path, line in places)]
    of_rule = [change for change in changes if verdict.cause in change.codes]
    prefixes = MADE_BY.get(verdict.check, ())
    return at_places or of_rule or [c for c in changes if any(code.startswith(prefixes) for code in c.codes)]


def changes_of(conversion: Conversion) -> list[Change]:
    """Return what a conversion changes, with the rules that ask for it, in the order of the files and lines."""
    found = [change for file in conversion.files for change in _changes_in(file)]
    by_file: dict[str, list[Change]] = defaultdict(list)
    for change in found:
        by_file[change.file.source.name].append(change)
    for finding in conversion.findings:
        for name, line in _lines_of(finding, conversion.project.sources):
            nearest = min(by_file[name], key=lambda change: _distance(change.old, line), default=None)
            if nearest is not None:
                nearest.codes.add(finding.code)
    return found


def _changes_in(file: ChangedFile) -> Iterator[Change]:
    old, new = file.source.text.splitlines(), file.text.splitlines()
    for tag, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield Change(file, range(i, i_end), range(j, j_end))


def _lines_of(finding: Finding, sources: Collection[Source]) -> set[tuple[str, int]]:
    """Return the files and the lines before the conversion, from 0, that the edits of a finding are at.

    Those of a text that other edits have changed already are at the place of the finding, which is one before them.
    """
    own = {(edit.source.name, edit.source.line_of(edit.start) - 1) for edit in finding.edits if edit.source in sources}
    later = {(finding.place.path, finding.place.line - 1)} if finding.edits and not own else set()
    return own | later


def _distance(lines: range, line: int) -> int:
    return max(lines.start - line, line - max(lines.start, lines.stop - 1), 0)
