"""Run `retrofit verify --fix` on seeded bugs, and print for each whether it is repaired.

  python benchmarks/repairs.py [FOLDER] [--only NAME ...] [--keep DIR] [--jobs N] [--time-limit S]

FOLDER is one of benchmarks/blind_bugs.py; without it the bugs of docs/bugs.md (tests/verify/bugs) are taken. A bug is
repaired when `verify` says PASS of the repaired copy, or when the faults that it had named first are gone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verify_runs import verified

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]


@dataclass(frozen=True)
class Case:
    """One bug: what makes its folder, and the arguments of `verify`."""

    name: str
    make: Callable[[Path], object]
    arguments: list[str]


def main() -> int:
    args = parse_arguments()
    cases = [case for case in cases_of(args.folder) if not args.only or any(name in case.name for name in args.only)]
    outcomes = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for case, (outcome, said) in zip(cases, pool.map(lambda case: repaired(case, args), cases)):
            outcomes.append(outcome)
            print(f"{case.name} | {outcome} | {said}", flush=True)
    failed = len(outcomes) - outcomes.count("not caught")
    done = outcomes.count("PASS") + outcomes.count("fault gone")
    print(f"{done} of {len(outcomes)} bugs repaired ({outcomes.count('PASS')} to a PASS); {failed} were caught")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="seeded bugs by another hand (default: our own)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="bugs with one of these in their name")
    parser.add_argument("--keep", type=Path, help="a folder for the reports, NAME.json (default: none)")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time (default: 1)")
    parser.add_argument("--time-limit", type=float, default=150.0, help="seconds for each run (default: 150)")
    return parser.parse_args()


def cases_of(folder: Path | None) -> list[Case]:
    if folder is None:
        from verify.bugs.catalogue import BUGS, seed_bug

        return [
            Case(
                bug.id,
                lambda place, bug=bug: seed_bug(bug, place),
                ["train.py", *bug.verify_options, "--", *bug.arguments],
            )
            for bug in BUGS
        ]
    from blind_bugs import arguments_of

    bugs = json.loads((folder / "bugs" / "manifest.json").read_text())
    return [
        Case(
            bug["name"],
            lambda place, bug=bug: shutil.copytree(folder / "bugs" / bug["name"], place),
            arguments_of(bug),
        )
        for bug in bugs
    ]


def repaired(case: Case, args: argparse.Namespace) -> tuple[str, str]:
    """Return what became of a bug, and the edits that did it or why it was not repaired."""
    keep = args.keep / case.name if args.keep else None
    _, report, error = verified(case.make, ["--fix", *case.arguments], args.time_limit, keep)
    if not report:
        return "error", error
    return outcome_of(report)


def outcome_of(report: dict[str, Any]) -> tuple[str, str]:
    if report["status"] != "FAIL":
        return "not caught", report["conclusion"][:150]
    repair = report["repair"]
    edits = "; ".join(tried["edit"] for fault in repair["faults"] for tried in fault["tries"] if tried["kept"])
    if repair["status_after"] != "FAIL":
        return repair["status_after"], edits
    first = [fault for fault in repair["faults"] if fault["summary"] in {one["summary"] for one in report["faults"]}]
    if first and all(fault["repaired"] for fault in first):
        return "fault gone", edits
    why = [
        f"{fault['cause']} {fault['check']}: " + ", ".join(f"{t['edit']} -> {t['failed']}" for t in fault["tries"])
        for fault in repair["faults"]
        if not fault["repaired"]
    ]
    return "not repaired", (f"[{edits}] " if edits else "") + " || ".join(why)


if __name__ == "__main__":
    sys.exit(main())
