"""Seed every known bug into a sound project, let `retrofit verify` judge it, and write docs/bugs.md.

python docs/make_bug_table.py                       every bug once, every sound project 20 times: an hour on two cores
python docs/make_bug_table.py --results FILE        in several sittings: what FILE holds is not run again
python docs/make_bug_table.py --only 03 R5          these bugs, printed and not written
python docs/make_bug_table.py --sound 1 --only none each sound project once
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "verify"))

from bugs.bug import SHORT  # noqa: E402
from bugs.catalogue import BUGS, SOUND, Bug, copy_project, seed_bug  # noqa: E402

OUTPUT = ROOT / "docs" / "bugs.md"
MUTANTS = "## Mistakes made on purpose"  # a section that benchmarks/mutants.py writes
# The reference project synchronises BatchNorm on demand, and only the converted script knows how.
OPTIONS = {"reference": ["--converted-args=--sync_bn"]}


def main() -> int:
    args = parse_arguments()
    results = Results(args.results)
    rows = []
    for bug in tqdm([bug for bug in BUGS if not args.only or bug.id in args.only], desc="bugs"):
        row = results.of(f"bug {bug.id}", lambda bug=bug: judge_bug(bug, args.keep))
        tqdm.write(f"{'caught' if row['caught'] else 'MISSED'} {bug.id} {row['found']} {row['seconds']:.0f} s")
        rows.append((bug, row))
    sound = []
    for turn in tqdm(range(args.sound), desc="sound projects"):
        for project, variants in SOUND.items():
            arguments = variants[turn % len(variants)]
            name = " ".join([project, *arguments])
            case = results.of(f"sound {turn} {name}", lambda case=(project, arguments): judge_sound(*case))
            if case["found"]:
                tqdm.write(f"FALSE ALARM {name}: {case['found']}")
            sound.append((name, case))
    if not args.only:
        on_mutants = OUTPUT.read_text(encoding="utf-8").partition(MUTANTS)
        OUTPUT.write_text(f"{page(rows, sound)}\n{''.join(on_mutants[1:])}".rstrip() + "\n", encoding="utf-8")
    return int(any(not row["caught"] for _, row in rows) or any(case["found"] for _, case in sound))


class Results:
    """What has been judged already, kept in a JSON file; without a file nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def of(self, name: str, judge: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result called `name`, judged now if it is not known."""
        if name not in self.known:
            self.known[name] = judge()
            if self.path:
                self.path.write_text(json.dumps(self.known, indent=1))
        return self.known[name]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these bugs (default: all, and the page is written)")
    turns = "runs of each sound project, its variants in turn (default: 20; 0 with --only)"
    parser.add_argument("--sound", type=int, metavar="N", help=turns)
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON file to continue from (default: none)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what each verification wrote (default: nothing)")
    args = parser.parse_args()
    if args.sound is None:
        args.sound = 0 if args.only else 20
    return args


def judge_bug(bug: Bug, keep: Path | None = None) -> dict[str, Any]:
    """Return what verify says about a seeded bug, and whether it names the right cause in the right check."""
    with tempfile.TemporaryDirectory() as folder:
        script = seed_bug(bug, Path(folder))
        options = [*bug.verify_options, *(["--keep", str((keep / bug.id).absolute())] if keep else [])]
        report = verify(script, bug.arguments, [*OPTIONS.get(bug.project, []), *options])
    failures = [verdict for verdict in report["verdicts"] if verdict["status"] == "FAIL"]
    named = next((verdict for verdict in failures if verdict["cause"] in bug.cause), None)
    return {
        "caught": named is not None,
        "check": named and named["check"],
        "step": named and named["step"],
        "cause": named and f"{named['cause']} {report['causes'][named['cause']]['name']}",
        "found": [f"{verdict['check']}: {verdict['cause']}" for verdict in failures],
        "seconds": report["seconds"],
    }


def judge_sound(project: str, arguments: list[str]) -> dict[str, Any]:
    """Return what verify finds in a project in which there is nothing to find."""
    with tempfile.TemporaryDirectory() as folder:
        script = copy_project(project, Path(folder))
        original = "tests/single_gpu/train.py" if project == "reference" else "train_single.py"
        options = [*OPTIONS.get(project, []), "--original", original]
        report = verify(script, [*SHORT[project], *arguments], options)
    found = [f"{v['check']}: {v['summary']}" for v in report["verdicts"] if v["status"] == "FAIL"]
    if report["status"] != "PASS" and not found:
        found = [f"status {report['status']}"]  # nothing was proven, which is not the same as nothing found
    passed = [v["check"] for v in report["verdicts"] if v["status"] == "PASS"]
    return {"found": found, "passed": passed, "seconds": report["seconds"]}


def verify(script: Path, arguments: list[str], options: list[str]) -> dict[str, Any]:
    """Run `retrofit verify` in the script's folder and return its JSON report."""
    command = [sys.executable, "-m", "retrofit", "verify", script.name, "--json", "--html", "", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    result = subprocess.run(
        [*command, "--", *arguments], cwd=script.parent, env=environ, capture_output=True, text=True, check=False
    )
    if not result.stdout:
        raise RuntimeError(f"{' '.join(command)} gave no report:\n{result.stderr}")
    return {**json.loads(result.stdout), "seconds": time.perf_counter() - started}


def number(bug: Bug) -> str:
    return bug.id.rstrip("abcdef")


def page(rows: list[tuple[Bug, dict[str, Any]]], sound: list[tuple[str, dict[str, Any]]]) -> str:
    caught = sum(row["caught"] for _, row in rows)
    bugs = {number(bug) for bug, _ in rows}
    missed = {number(bug) for bug, row in rows if not row["caught"]}
    alarms = sum(bool(case["found"]) for _, case in sound)
    lines = [
        "# What `retrofit verify` catches",
        "",
        "Written by `python docs/make_bug_table.py`: each bug is seeded into a sound project (`tests/verify/bugs/`),",
        "and verify is run on it. 01 to 26 recur in conversions of many projects, R1 to R10 are those that a",
        "conversion of the reference project has had; a letter tells variants apart. A bug is caught when a check",
        "fails and names its cause. The first step is empty where a check does not go by steps.",
        "",
        f"**{len(bugs) - len(missed)} of {len(bugs)} bugs caught ({caught} of {len(rows)} variants), {alarms} false "
        f"alarms in {len(sound)} runs of sound projects.**",
        "",
        "| | Bug | Project | Check that fails | First step | Cause named |",
        "|---|---|---|---|---|---|",
    ]
    for bug, row in rows:
        step = "" if row["step"] is None else row["step"]
        lines.append(f"| {bug.id} | {bug.title} | {bug.project} | {row['check']} | {step} | {row['cause']} |")
    lines += ["", "## Sound projects", ""]
    lines += ["| Project and arguments | Runs | Checks passed in each | False alarms |", "|---|---|---|---|"]
    for name in sorted({name for name, _ in sound}):
        cases = [case for other, case in sound if other == name]
        passed = sorted({len(case["passed"]) for case in cases})
        alarms = sum(bool(case["found"]) for case in cases)
        lines.append(f"| `{name}` | {len(cases)} | {' or '.join(map(str, passed))} | {alarms} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
