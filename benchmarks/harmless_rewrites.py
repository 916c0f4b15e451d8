"""Measure how `retrofit convert` does on projects that are written in another way: its outcome must not change.

  python benchmarks/harmless_rewrites.py                         all rewrites on the golden projects; minutes
  python benchmarks/harmless_rewrites.py --only decorate         one of them
  python benchmarks/harmless_rewrites.py --output FILE.md        the table as a page

A project is rewritten (benchmarks/rewrites/), converted as it was and as it is now, and the outcomes are compared:
converted or refused, and how often each function of the runtime is called in the converted project. With --run each
rewritten project is also trained, in one process, to see that the rewrite is harmless.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import Pool
from pathlib import Path

from rewrites import REWRITES, rewritten
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from convert.case import Case
from convert.feature_cases import FEATURE_CASES
from convert.golden_projects import PROJECTS, copy_case
from convert.shape_cases import SHAPE_CASES

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

CALL = re.compile(r"\brd\.([\w.]+)\(")
SAME_EFFECT = {"learning_rate.scale_optimizer": "scaled_lr"}  # where the rate is not in the optimizer's own call
CASES = [case for case in [*SHAPE_CASES, *FEATURE_CASES] if not case.refused]
SAME, OTHER_CALLS, REFUSED, FAILED = "the same", "other calls", "refused", "failed"


@dataclass(frozen=True)
class Outcome:
    project: str
    rewrite: str
    kind: str
    detail: str = ""


@dataclass
class Converted:
    calls: Counter[str] = field(default_factory=Counter)
    listed: int = 0
    refusals: list[str] = field(default_factory=list)


def convert(script: Path) -> Converted:
    conversion = plan_conversion(read_project(script))
    refusals = [f"{finding.place}: {finding.code} {finding.refusal}" for finding in conversion.refusals]
    names = (name for file in conversion.files for name in CALL.findall(file.text))
    calls = Counter(SAME_EFFECT.get(name, name) for name in names)
    return Converted(calls, len(conversion.listed), refusals)


@cache
def as_it_was(case_name: str) -> Converted:
    """Return what a project's conversion is without a rewrite."""
    case = next(case for case in CASES if case.name == case_name)
    return convert(PROJECTS / case.name / case.entry)


def python_files(folder: Path) -> dict[str, str]:
    texts = {}
    for path in sorted(folder.rglob("*.py")):
        with tokenize.open(path) as file:
            texts[str(path.relative_to(folder))] = file.read()
    return texts


def examine(task: tuple[Case, str, bool]) -> Outcome | None:
    """Return what a rewrite changes in a project's conversion, None where it has nothing to rewrite."""
    case, rewrite, run = task
    with tempfile.TemporaryDirectory() as temporary:
        folder = copy_case(case, Path(temporary, "project"))
        try:
            changed = rewritten(python_files(folder), REWRITES[rewrite])
            if not changed:
                return None
            before = as_it_was(case.name)
            shown = _shown(case, folder) if run else ""
            for name, text in changed.items():
                ast.parse(text)
                (folder / name).write_text(text, encoding="utf-8")
            if run:
                now = _shown(case, folder)
                if now != shown:
                    return Outcome(case.name, rewrite, FAILED, f"not harmless: {now[-300:]!r} for {shown[-300:]!r}")
            after = convert(folder / case.entry)
        except Exception:
            return Outcome(case.name, rewrite, FAILED, traceback.format_exc().strip().splitlines()[-1])
    if after.refusals:
        return Outcome(case.name, rewrite, REFUSED, after.refusals[0])
    if after.calls != before.calls or after.listed != before.listed:
        fewer, more = before.calls - after.calls, after.calls - before.calls
        detail = [f"-{count} {name}" for name, count in fewer.items()] + [f"+{n} {name}" for name, n in more.items()]
        detail += [f"{before.listed} -> {after.listed} listed"] if before.listed != after.listed else []
        return Outcome(case.name, rewrite, OTHER_CALLS, ", ".join(detail))
    return Outcome(case.name, rewrite, SAME)


def _shown(case: Case, folder: Path) -> str:
    """Return what a project prints in one process, without numbers that are seconds or dates."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "project")
        subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
        command = [sys.executable, case.entry, *case.arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    text = re.sub(r"[\d.:]+ ?(s|it/s|ms)\b|\d\d:\d\d(:\d\d)?|\d{4}-\d\d-\d\d", "*", ended.stdout)
    return text if ended.returncode == 0 else f"status {ended.returncode}: {ended.stderr[-300:]}"


def report(outcomes: list[Outcome]) -> str:
    """Return the table of the rewrites, and the outcomes that changed."""
    counts = Counter(outcome.kind for outcome in outcomes)
    lines = [
        f"{counts[SAME]} of {len(outcomes)} ({counts[SAME] / max(1, len(outcomes)):.1%}) the same; "
        + ", ".join(f"{counts[kind]} {kind}" for kind in (OTHER_CALLS, REFUSED, FAILED)),
        "",
        "| rewrite | projects | the same | other calls | refused | failed |",
        "|---|---|---|---|---|---|",
    ]
    for rewrite in REWRITES:
        own = Counter(outcome.kind for outcome in outcomes if outcome.rewrite == rewrite)
        kinds = " | ".join(str(own[kind]) for kind in (SAME, OTHER_CALLS, REFUSED, FAILED))
        lines.append(f"| {rewrite} | {sum(own.values())} | {kinds} |")
    different = [outcome for outcome in outcomes if outcome.kind != SAME]
    lines += ["", *(f"- {o.rewrite}, {o.project}: {o.kind}: {o.detail}" for o in different)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=REWRITES, metavar="NAME", help="these rewrites (default: all)")
    parser.add_argument("--projects", nargs="+", metavar="NAME", help="these golden projects (default: all)")
    parser.add_argument("--run", action="store_true", help="train each rewritten project, too (default: no)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: one for each core)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there, too (default: no)")
    args = parser.parse_args()
    cases = [case for case in CASES if not args.projects or case.name in args.projects]
    tasks = [(case, rewrite, args.run) for case in cases for rewrite in args.only or REWRITES]
    with Pool(args.processes) as pool:
        results = list(
            tqdm(
                pool.imap(examine, tasks, chunksize=len(args.only or REWRITES)),
                total=len(tasks),
                desc="conversions",
                leave=False,
                disable=None,
            )
        )
    text = report([outcome for outcome in results if outcome is not None])
    print(text, end="")
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
