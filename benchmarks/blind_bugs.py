"""Run `retrofit verify` on a folder of seeded bugs and sound scripts, and print what it says of each.

  python benchmarks/blind_bugs.py FOLDER [--part sound bases bugs] [--only NAME ...] [--turns N] [--keep DIR]
      [--time-limit S]

FOLDER holds base/NAME/train.py, bugs/NAME/train.py with bugs/manifest.json (for each bug: name, base, flag, extra, args
and the codes that a right diagnosis may name) and sound/NAME/train.py with sound/arguments.json (name: folder, args).
A bug is caught with exit status 1; its cause is right when one of the failed checks names one of its codes. A sound
script is right with any exit status but 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verify_runs import verified

PARTS = ("sound", "bases", "bugs")


@dataclass(frozen=True)
class Case:
    """One script, and how `verify` is asked about it."""

    part: str
    name: str
    folder: Path
    arguments: list[str]
    codes: tuple[str, ...] = ()  # of a right diagnosis


def main() -> int:
    args = parse_arguments()
    cases = [case for case in cases_of(args.folder) if case.part in args.part]
    if args.only:
        cases = [case for case in cases if any(name in case.name for name in args.only)]
    rows = []
    for case in cases * args.turns:
        rows.append(row_of(case, *judged(case, args)))
        print(" | ".join(rows[-1]), flush=True)
    print(total(rows))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the seeded bugs and sound scripts")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with one of these in their name")
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="how often each is run (default: 1)")
    parser.add_argument("--keep", type=Path, help="a folder for the reports, CASE.json and CASE.err (default: none)")
    parser.add_argument("--time-limit", type=float, default=150.0, help="seconds for each run (default: 150)")
    return parser.parse_args()


def cases_of(folder: Path) -> list[Case]:
    """Return the sound scripts, then the bases with the arguments of their first bug, then the bugs."""
    sound = json.loads((folder / "sound" / "arguments.json").read_text())
    cases = [Case("sound", name, folder / "sound" / one["folder"], one["args"]) for name, one in sound.items()]
    bugs = json.loads((folder / "bugs" / "manifest.json").read_text())
    bases: dict[str, Any] = {}
    for bug in bugs:
        bases.setdefault(bug["base"], bug)
    for path in sorted((folder / "base").iterdir()):
        if path.name in bases:
            cases.append(Case("bases", path.name, path, arguments_of(bases[path.name])))
        else:
            cases.append(Case("bases", path.name, path, plain_arguments(path)))
    for bug in bugs:
        place = folder / "bugs" / bug["name"]
        cases.append(Case("bugs", bug["name"], place, arguments_of(bug), tuple(bug["codes"])))
    return cases


def arguments_of(bug: dict[str, Any]) -> list[str]:
    flag = ["--batch-flag", bug["flag"]] if bug["flag"] else []
    return ["train.py", *flag, *bug["extra"], "--", *bug["args"]]


def plain_arguments(folder: Path) -> list[str]:
    """Return the arguments for a base without a bug: two epochs, and the batch of its own default."""
    found = re.search(r'"--(batch\w*)", type=int, default=(\d+)', (folder / "train.py").read_text())
    assert found, f"no flag of the batch size in {folder}"
    return ["train.py", "--batch-flag", found[1], "--", f"--{found[1]}", found[2], "--epochs", "2"]


def judged(case: Case, args: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Return what `verify` says of a case: see `verify_runs.verified`."""
    keep = args.keep / f"{case.part}.{case.name}" if args.keep else None
    return verified(lambda place: shutil.copytree(case.folder, place), case.arguments, args.time_limit, keep)


def row_of(case: Case, status: int, report: dict[str, Any], error: str) -> list[str]:
    """Return part, name, outcome, seconds, and the failed checks with their causes."""
    failed = [verdict for verdict in report.get("verdicts", ()) if verdict["status"] == "FAIL"]
    said = ", ".join(f"{verdict['check']} {verdict['cause'] or '-'}" for verdict in failed)
    if case.part != "bugs":
        outcome = "FALSE ALARM" if status == 1 else report.get("status", f"exit status {status}")
    elif status != 1:
        outcome = "MISSED"
    else:
        is_right = any(verdict["cause"] in case.codes for verdict in failed)
        outcome = "caught, right cause" if is_right else "caught"
    return [case.part, case.name, outcome, f"{report.get('seconds', 0):.0f} s", said or report.get("conclusion", error)]


def total(rows: list[list[str]]) -> str:
    bugs = [row[2] for row in rows if row[0] == "bugs"]
    sound = [row[2] for row in rows if row[0] != "bugs"]
    caught = sum(outcome.startswith("caught") for outcome in bugs)
    right = bugs.count("caught, right cause")
    return (
        f"{caught} of {len(bugs)} bugs caught, {right} with a right cause; "
        f"{sound.count('FALSE ALARM')} false alarms on {len(sound)} sound scripts ({sound.count('PASS')} PASS)"
    )


if __name__ == "__main__":
    sys.exit(main())
