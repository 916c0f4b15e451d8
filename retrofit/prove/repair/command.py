"""`retrofit verify --fix`: its options, and what it prints and writes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrofit.verify.verdict import FAIL, INCOMPLETE, PASS, Report, count, overall_status, printable

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule
    from retrofit.verify.runs.plan import Plan

    from .attempts import FaultRepair, Repair


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the repair to the parser of `verify`."""
    group = parser.add_argument_group("repair")
    group.add_argument(
        "--fix",
        action="store_true",
        help="after a FAIL, try edits for the fault in a copy, verify the copy, and show the diff with the new "
        "verdict; your files stay as they are (default: off)",
    )
    group.add_argument(
        "--write",
        action="store_true",
        help="with --fix: write the repaired files, if fewer faults are left and no new one (default: off)",
    )


def repair(plan: Plan, report: Report, args: argparse.Namespace) -> dict[str, Any] | None:
    """Repair what a report names. Returns the object `repair` of the JSON; None where nothing has failed."""
    from retrofit.rules.catalog import CATALOG

    from .attempts import repair as repaired

    if overall_status(report.verdicts) != FAIL:
        return None
    result = repaired(plan, report, args)
    if args.write and result.files:
        _write(result)
    return _as_json(result, plan, report, CATALOG)


def _write(result: Repair) -> None:
    """Write the repaired files; each is as it was when the runs began, or ValueError is raised and none is written."""
    for path, data in result.before.items():
        if path.read_bytes() != data:
            raise ValueError(f"{path} was changed during the runs; nothing was written, start again")
    for path, data in result.files.items():
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".{target.name}.retrofit-{os.getpid()}")
        temporary.write_bytes(data)
        temporary.chmod(target.stat().st_mode)
        os.replace(temporary, target)
    result.written = True


def _as_json(result: Repair, plan: Plan, report: Report, rules: dict[str, Rule]) -> dict[str, Any]:
    from retrofit.verify.report.conclusion import conclusion

    return {
        "faults": [_fault(one, report, rules) for one in result.faults],
        "diff": result.diff(Path(os.path.realpath(plan.project))),
        "status_after": result.status,
        "conclusion_after": conclusion(result.report) if result.report else "",
        "written": result.written,
    }


def _fault(one: FaultRepair, report: Report, rules: dict[str, Rule]) -> dict[str, Any]:
    from retrofit.verify.report.remedies import remedy

    verdict = one.fault.verdict
    rule = rules.get(verdict.cause or "")
    return {
        "cause": verdict.cause,
        "check": verdict.check,
        "summary": verdict.summary,
        "repaired": not one.why_not,
        "why_not": one.why_not,
        "remedy": remedy(rule, report.dialect) if rule and one.why_not else None,
        "tries": [
            {"edit": tried.text, "status": tried.status, "failed": tried.failed, "kept": tried.is_kept}
            for tried in one.attempts
        ],
    }


def print_repair(found: dict[str, Any]) -> None:
    """Print what was tried, the diff, the verdict on the repaired copy and whether it was written."""
    lines = [""]
    for fault in found["faults"]:
        cause = f"{fault['cause']} " if fault["cause"] else ""
        lines.append(f"fix: {cause}({fault['check']}): {fault['summary']}")
        for tried in fault["tries"]:
            said = tried["status"] + (f" ({', '.join(tried['failed'])})" if tried["failed"] else "")
            lines.append(f"  tried: {tried['edit']}: {said}{', kept' if tried['kept'] else ', dropped'}")
        if fault["why_not"]:
            lines.append(f"  not repaired: {fault['why_not']}")
            lines += [f"  remedy: {fault['remedy']}"] if fault["remedy"] else []
    if found["diff"]:
        lines += ["", found["diff"], f"repaired copy: {found['conclusion_after']}"]
        lines.append(_said_of_files(found))
    else:
        lines.append("nothing was repaired, and no file was changed")
    print(printable("\n".join(lines)))


def _said_of_files(found: dict[str, Any]) -> str:
    if not found["written"]:
        return "no file was changed; add --write to apply the diff"
    left = sum(not fault["repaired"] for fault in found["faults"])
    if found["status_after"] in (PASS, INCOMPLETE):
        return f"written: the new verdict is {found['status_after']}"
    return f"written: the named fault is gone, no new one has come; {count(left, 'fault')} not repaired"
