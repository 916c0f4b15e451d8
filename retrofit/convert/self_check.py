"""Read what a conversion is about to write once more, with the rules: nothing that is found in it may be written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from retrofit.analysis.edits import Edit, in_order
from retrofit.rules.catalog import CATALOG
from retrofit.rules.collectives import collective_on_some_ranks
from retrofit.rules.files import reread_before_written
from retrofit.rules.finding import Finding
from retrofit.rules.registry import find_hazards
from retrofit.training import Project, Source


class ConversionError(ValueError):
    """The converted text is not right, which is an error of retrofit. The message has a line per fault.

    `undecided` are the calls that all ranks must make, which each rank of the converted text would make or not by its
    own samples: the decision is the script's own, and a rule may have added the call. `misplaced` are the findings
    whose barriers not all ranks would come to: they can be left to the user instead.
    """

    def __init__(self, message: str, undecided: Iterable[Finding] = (), misplaced: Iterable[Finding] = ()) -> None:
        super().__init__(message)
        self.undecided, self.misplaced = list(undecided), list(misplaced)


def require_sound(again: Project, authors: Authors, findings: list[Finding]) -> list[Finding]:
    """Compare the findings in a project, read from the converted text, with those before its conversion.

    What the conversion has listed for a person to do may still be there. Returns what it has neither listed nor claimed
    to end. Raises ConversionError for what it claimed to end, for what it could change again, and for a collective call
    that only some ranks come to.
    """
    listed = Counter((finding.code, finding.place.path) for finding in findings if not finding.edits)
    left: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in find_hazards(again):
        left[finding.code, finding.place.path].append(finding)
    new = {of_rule: found for of_rule, found in left.items() if len(found) > listed[of_rule]}
    claimed = {(finding.code, finding.place.path) for finding in findings if finding.edits}
    claimed |= {of_rule for of_rule in new if of_rule[0] == collective_on_some_ranks.RULE.code}
    faults = [f for of_rule in new for f in new[of_rule] if of_rule in claimed or f.edits or f.refusal]
    if faults:
        message = "\n".join(authors.message(finding) for finding in faults)
        decided = [finding for finding in faults if finding.help == collective_on_some_ranks.DECIDE]
        barriers = {reread_before_written.RULE.code}
        misplaced = [f for fault in decided for f in authors.findings_at(fault) if f.code in barriers]
        is_own = len(decided) == len(faults) and not misplaced
        raise ConversionError(message, decided if is_own else (), misplaced)
    return [
        replace(finding, message=f"{finding.message} (a line of the converted text)")
        for of_rule, found in new.items()
        for finding in found[listed[of_rule] :]
    ]


class Authors:
    """Finds out which rules have changed a line of the converted text."""

    def __init__(self, edits: Mapping[Source, list[Edit]], findings: list[Finding]) -> None:
        self.edits = {source.name: (source, changes) for source, changes in edits.items()}
        self.codes: dict[Edit, str] = {}
        self.findings: dict[Edit, Finding] = {}
        for finding in findings:
            for edit in finding.edits:
                self.codes.setdefault(edit, finding.code)
                self.findings.setdefault(edit, finding)

    def message(self, finding: Finding) -> str:
        codes = self.of(finding)
        by = f"on a line that {named(codes)} changed" if codes else "on an unchanged line"
        return (
            f"{finding.place}: {named([finding.code])} is found in the converted text, {by}: {finding.message}; "
            "this is an error of retrofit, nothing was written; `retrofit check` lists what to change by hand"
        )

    def of(self, finding: Finding) -> set[str]:
        return self.codes_at(finding.place.path, finding.place.line)

    def findings_at(self, fault: Finding) -> list[Finding]:
        """Return the findings whose edits write to the line of a fault."""
        edits = self._edits_at(fault.place.path, fault.place.line)
        return [self.findings[edit] for edit in edits if edit in self.findings]

    def codes_at(self, name: str, line: int) -> set[str]:
        """Return the rules of the edits that write to a line, counted from 1, of the converted file."""
        return {self.codes[edit] for edit in self._edits_at(name, line) if edit in self.codes}

    def _edits_at(self, name: str, line: int) -> list[Edit]:
        if name not in self.edits:
            return []
        found = []
        source, edits = self.edits[name]
        shift = 0
        for edit in in_order(source, edits):
            first = source.line_of(edit.start) + shift
            added = _line_ends(edit.text)
            if first <= line <= first + added:
                found.append(edit)
            shift += added - _line_ends(source.text[edit.start : edit.end])
        return found


def named(codes: Iterable[str]) -> str:
    """Return codes of rules as text, with the rules' names."""
    return " and ".join(f"{code} {CATALOG[code].name}" for code in sorted(set(codes))) or "the import of the runtime"


def _line_ends(text: str) -> int:
    return text.count("\n") + text.count("\r") - text.count("\r\n")
