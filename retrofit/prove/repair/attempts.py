"""Try the candidates for each fault in a copy of the project, and keep what `verify` finds to be better."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from retrofit.analysis.files.runtime_names import RUNTIME
from retrofit.analysis.files.source import SourceError
from retrofit.training import Project
from retrofit.training.launch.entry import open_project
from retrofit.verify.command import examine
from retrofit.verify.report.faults import Fault, faults
from retrofit.verify.verdict import FAIL, Report, overall_status

from .candidates import Change, changes_for
from .guard import is_better

if TYPE_CHECKING:
    from retrofit.verify.runs.plan import Plan

MOST_TRIES = 4  # for a fault
MOST_FAULTS = 4


@dataclass
class Attempt:
    """An edit that was tried, and what `verify` said of the copy."""

    text: str
    status: str
    failed: list[str]  # checks
    is_kept: bool


@dataclass
class FaultRepair:
    """What became of one fault. `why_not` is empty where it is repaired."""

    fault: Fault
    attempts: list[Attempt] = field(default_factory=list)
    why_not: str = ""


@dataclass
class Repair:
    """What `--fix` found: the repaired faults, the files to be written, and the report on the repaired copy."""

    faults: list[FaultRepair] = field(default_factory=list)
    files: dict[Path, bytes] = field(default_factory=dict)
    before: dict[Path, bytes] = field(default_factory=dict)
    report: Report | None = None  # of the repaired copy; None where nothing was repaired
    written: bool = False

    @property
    def status(self) -> str:
        return overall_status(self.report.verdicts) if self.report else FAIL

    def diff(self, root: Path) -> str:
        """Return the changes as a unified diff."""
        parts = []
        for path, data in self.files.items():
            name = os.path.relpath(path, root)
            old, new = (text.decode("utf-8", "replace").splitlines(True) for text in (self.before[path], data))
            lines = [*difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")]
            parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
        return "".join(parts)


def repair(plan: Plan, report: Report, args: argparse.Namespace) -> Repair:
    """Repair what a report names, a fault after the other, each proven in a copy. Nothing of the user's is changed."""
    result = Repair()
    try:
        project = _opened(plan)
    except (SourceError, ValueError) as error:
        result.faults = [
            FaultRepair(one, why_not=f"the script could not be read: {error}") for one in faults(report.verdicts)
        ]
        return result
    current, given_up = report, set()
    while len(result.faults) < MOST_FAULTS:
        fault = next((one for one in faults(current.verdicts) if one.verdict.check not in given_up), None)
        if fault is None:
            break
        one = FaultRepair(fault)
        result.faults.append(one)
        found = _try(plan, project, current, one, args, result)
        if found is None:
            given_up.add(fault.verdict.check)
            continue
        change, current = found
        for file in change.files:
            result.before.setdefault(file.path, file.path.read_bytes())
            result.files[file.path] = file.data
        project = project.with_texts(result.files)
        result.report = current
    return result


def _opened(plan: Plan) -> Project:
    """Return the project of a plan; edits import the runtime that it uses, the library or the file."""
    place = os.curdir if plan.module else os.path.relpath(plan.script, plan.project)
    project, _ = open_project(place, plan.module or None)
    has_library = any(RUNTIME in source.text for source in project.sources)
    return open_project(place, plan.module or None, runtime=RUNTIME)[0] if has_library else project


def _try(
    plan: Plan, project: Project, before: Report, one: FaultRepair, args: argparse.Namespace, done: Repair
) -> tuple[Change, Report] | None:
    fault = one.fault
    checks = [fault.verdict.check, *(verdict.check for verdict in fault.explains)]
    verdict = fault.verdict
    places = " ".join(filter(None, [verdict.place, verdict.summary, verdict.value, verdict.note]))
    root = Path(os.path.realpath(plan.project))
    inside = (
        change
        for change in changes_for(project, fault, places)
        if all(root in Path(os.path.realpath(path)).parents for path in change.data)
    )
    for change in islice(inside, MOST_TRIES):
        after = verified(plan, {**done.files, **change.data}, args)
        is_kept = is_better(before.verdicts, after.verdicts, checks)
        failed = [verdict.check for verdict in after.verdicts if verdict.status == FAIL]
        one.attempts.append(Attempt(change.text, overall_status(after.verdicts), failed, is_kept))
        if is_kept:
            return change, after
    if one.attempts:
        one.why_not = "none of the edits that were tried makes the check pass"
    else:
        one.why_not = "no edit is known for it in this script; the remedy is for a person"
    return None


def verified(plan: Plan, files: Mapping[Path, bytes], args: argparse.Namespace) -> Report:
    """Return what `verify` says of a copy of the project in which some files hold other texts."""
    folder = Path(tempfile.mkdtemp(prefix="retrofit-fix-"))
    root = os.path.realpath(plan.project)
    changes = {os.path.relpath(os.path.realpath(path), root): data for path, data in files.items()}
    try:
        return examine(replace(plan, folder=folder, changes={**plan.changes, **changes}), args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
