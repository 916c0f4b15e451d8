"""Turn what the rules ask for into edits, with all findings in view: who guards what, and what is reduced where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from retrofit.analysis.edits import Edit
from retrofit.rules.finding import Finding
from retrofit.training import Project
from retrofit.training.distributed.placement import place_reductions
from retrofit.training.distributed.reductions import Reduction
from retrofit.training.files.guards import Guard


def placed(project: Project, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings whose changes are plain edits. One with a change that has no correct place has none left."""
    known = list(findings)
    asked = [change for finding in known for change in finding.edits]
    reductions = [change for change in asked if isinstance(change, Reduction)]
    guarding = [change for change in asked if isinstance(change, Guard)]
    found = place_reductions(project, reductions, {guard.statement for guard in guarding})
    guards = project.guards_with(found.shared, {guard.output for guard in guarding}) if guarding else {}

    def edits_of(change: object) -> tuple[Edit, ...]:
        if isinstance(change, Reduction):
            return found.edits.get(change, ())
        return guards.get(change.output, ()) if isinstance(change, Guard) else (change,)  # type: ignore[return-value]

    result = []
    for finding in known:
        edits = [edits_of(change) for change in finding.edits]
        result.append(replace(finding, edits=tuple(edit for each in edits for edit in each) if all(edits) else ()))
    return result
