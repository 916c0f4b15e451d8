"""Make mistakes on purpose in sound scripts, and measure how many of them `retrofit verify` finds.

  python benchmarks/mutants.py --results FILE                    all mutants; hours on two cores
  python benchmarks/mutants.py --only ddp_classifier             those of one script
  python benchmarks/mutants.py --operators drop_set_epoch        those of one operator
  python benchmarks/mutants.py --every 5                         each fifth of them
  python benchmarks/mutants.py --results FILE --sound 20         each sound script 20 times, no mutants
  python benchmarks/mutants.py --results FILE --summary          the table of what FILE holds, nothing is run
  python benchmarks/mutants.py --results FILE --write            the same, written to docs/bugs.md
  python benchmarks/mutants.py --list                            how many there are, nothing is run

The scripts are those of benchmarks/mutation/subjects/ (plain torch), of tests/verify/projects/ (the runtime), the
golden projects of tests/convert/ after their conversion (with the script before it as --original), and those of
--folder (NAME/train.py with NAME in arguments.json). Each mutation operator (benchmarks/mutation/) is applied at each
place where it can be. Left out: a mutant whose script fails on one process, too; one whose line no run of `verify`
comes to; and those that train as before, listed by hand with the reason in benchmarks/mutation/equivalent.json. A
mutant is caught with exit status 1; its cause is right when a failed check names one of the operator's codes. It is
said where the report has a line for it after a PASS (a figure of rank 0's share); that does not count as caught. Before
the mutants each sound script is judged itself; what fails there does not count in its mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from mutation import OPERATORS, mutations
from mutation.reach import marked
from tqdm import tqdm
from verify_runs import verified

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent / "mutation"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from convert.feature_cases import FEATURE_CASES  # noqa: E402
from convert.golden_projects import convert, copy_case  # noqa: E402
from convert.shape_cases import SHAPE_CASES  # noqa: E402
from forked_python import ForkedPython  # noqa: E402

PAGE = ROOT / "docs" / "bugs.md"
HEADING = "## Mistakes made on purpose in sound scripts"
SECTION = """\
Written by `python benchmarks/mutants.py --results FILE --write`: each mistake is made at places of sound scripts
(plain torch, the runtime's, and converted projects with the script before the conversion as `--original`), and verify
is run on it. Said after a PASS: a figure of rank 0's share that the report names with its line. Mistakes that train as
before are listed with the reason in `benchmarks/mutation/equivalent.json`; not reached are lines to which no run comes
with the arguments of the script. The finding of `converted_yaml_config` is true: it prints an IoU of rank 0's share,
which `convert` leaves and lists in `MULTI_GPU.md`."""
OF_THE_RUNTIME = {"multigpu.py", "train_single.py", "gather.py"}  # not mutated: not of the user, or not of the run
EXECUTABLE, PATH = sys.executable, os.environ.get("PATH", "")
BY_HASHES = {"classes_from_set"}  # mistakes that show where processes have other hashes
BEFORE = "before_the_conversion"  # folder in a project
SOUND, CAUGHT, OTHER_CAUSE, SAID, MISSED, EQUIVALENT, NOT_REACHED, NOT_RUN = (
    "sound",
    "right cause",
    "caught",
    "said",
    "MISSED",
    "equivalent",
    "not reached",
    "not run",
)


@dataclass(frozen=True)
class Subject:
    """A sound script, and how `verify` is asked about it."""

    name: str
    folder: Path
    arguments: list[str]  # of the script
    entry: str = "train.py"
    options: list[str] = field(default_factory=list)  # of verify
    before: Path | None = None  # the project before its conversion


@dataclass(frozen=True)
class Mutant:
    subject: Subject
    operator: str
    file: str
    line: int
    code: str
    data: bytes  # of the file

    @property
    def key(self) -> str:
        return f"{self.subject.name} {self.operator} {self.file}:{self.line} {self.code}"


def main() -> int:
    args = parse_arguments()
    done = results_of(args.results)
    if args.summary or args.write:
        print(table(done.values()))
        if args.write:
            write_section(table(done.values()))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants_") as temporary, ForkedPython() as python, python.in_place():
        subjects = [one for one in subjects_in(Path(temporary), args.folder) if not args.only or one.name in args.only]
        mutants = [mutant for subject in subjects for mutant in mutants_of(subject)]
        mutants = [mutant for mutant in mutants if not args.operators or mutant.operator in args.operators]
        mutants = mutants[:: args.every]
        if args.list:
            print(
                f"{len(mutants)} mutants of {len(subjects)} scripts by {len({m.operator for m in mutants})} operators"
            )
            return 0
        for turn in range(args.sound or 1):
            for subject in tqdm(subjects, desc=f"sound scripts, turn {turn + 1}"):
                if key_of(subject, turn) not in done:
                    note(judged_subject(subject, turn, args), done, args.results)
        for mutant in tqdm([] if args.sound else mutants, desc="mutants"):
            if mutant.key not in done:
                note(judged_mutant(mutant, args, done), done, args.results)
    print(table(done.values()))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="a line of JSON per mutant; what it holds is not run"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="SCRIPT", help="the mutants of these (default: all)")
    parser.add_argument("--operators", nargs="+", default=[], choices=OPERATORS, metavar="NAME", help="default: all")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="each K-th mutant (default: 1, all)")
    parser.add_argument("--sound", type=int, default=0, metavar="N", help="each sound script N times, and no mutant")
    parser.add_argument("--folder", type=Path, help="further sound scripts (default: none)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each run (default: 60)")
    parser.add_argument("--list", action="store_true", help="count the mutants, run nothing")
    parser.add_argument("--summary", action="store_true", help="print the table of --results, run nothing")
    parser.add_argument("--write", action="store_true", help="write this table to docs/bugs.md, run nothing")
    return parser.parse_args()


def write_section(text: str) -> None:
    """Replace the last section of the page of bugs, that on mutants."""
    before = PAGE.read_text(encoding="utf-8").partition(HEADING)[0].rstrip()
    PAGE.write_text(f"{before}\n\n{HEADING}\n\n{SECTION}\n\n{text}\n", encoding="utf-8")


# --- what is mutated


def subjects_in(work: Path, folder: Path | None) -> Iterator[Subject]:
    """Yield the sound scripts; those that are converted first are written to `work`."""
    for name, content in json.loads((HERE / "subjects" / "arguments.json").read_text()).items():
        yield Subject(name, HERE / "subjects" / name, content["arguments"], options=content["options"])
    for name in ("classifier", "gan", "language_model", "metric_learning"):
        yield Subject(f"runtime_{name}", ROOT / "tests" / "verify" / "projects" / name, [])
    for case in [*SHAPE_CASES, *FEATURE_CASES]:
        if not case.refused:
            original = copy_case(case, work / "before" / case.name)
            place = copy_case(case, work / case.name)
            convert(place, case.entry)
            options = ["--original", f"{BEFORE}/{case.entry}"]
            yield Subject(f"converted_{case.name}", place, case.arguments, case.entry, options, original)
    if folder is not None:
        for name, content in json.loads((folder / "arguments.json").read_text()).items():
            yield Subject(name, folder / name, content["arguments"], options=content["options"])


def mutants_of(subject: Subject) -> Iterator[Mutant]:
    for path in sorted(subject.folder.rglob("*.py")):
        if path.name not in OF_THE_RUNTIME:
            with tokenize.open(path) as file:
                text, encoding = file.read(), file.encoding
            for operator, mutation in mutations(text):
                name = path.relative_to(subject.folder).as_posix()
                data = mutation.text.encode(encoding)
                yield Mutant(subject, operator.name, name, mutation.line, mutation.code, data)


# --- how it is judged


def key_of(subject: Subject, turn: int = 0) -> str:
    """Return the name of the row of a sound script."""
    return f"{subject.name} {SOUND}" + (f" {turn}" if turn else "")


def judged_subject(subject: Subject, turn: int, args: argparse.Namespace) -> dict[str, Any]:
    status, report = run(subject, {}, args.time_limit)
    outcome = "FALSE ALARM" if status == 1 else report.get("status", f"exit status {status}")
    row = {"key": key_of(subject, turn), "subject": subject.name, "operator": SOUND, "outcome": outcome}
    own = {"own_figures": len(report.get("own_figures", ()))}
    return {
        **row,
        "seconds": round(report.get("seconds", 0), 1),
        "said": said_by(report),
        "failed": failed_in(report),
        **own,
    }


def judged_mutant(mutant: Mutant, args: argparse.Namespace, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    with started_anew() if mutant.operator in BY_HASHES else nullcontext():
        status, report = run(mutant.subject, {mutant.file: mutant.data}, args.time_limit)
    before = done[key_of(mutant.subject)].get("failed", [])
    failed = [one for one in failed_in(report) if one not in before]
    causes = OPERATORS[mutant.operator].causes
    if fails_alone(report):
        outcome = NOT_RUN
    elif status != 1 or not failed:
        outcome = not_caught(mutant, report, done, args)
    else:
        outcome = CAUGHT if not causes or any(cause in causes for _, cause in failed) else OTHER_CAUSE
    row = {"key": mutant.key, "subject": mutant.subject.name, "operator": mutant.operator, "outcome": outcome}
    return {**row, "seconds": round(report.get("seconds", 0), 1), "said": said_by(report)}


@contextmanager
def started_anew() -> Iterator[None]:
    """Let each process inside the block be an interpreter with hashes of its own: forked ones share them."""
    with mock.patch.object(sys, "executable", EXECUTABLE), mock.patch.dict(os.environ, PATH=PATH):
        yield


def not_caught(
    mutant: Mutant, report: dict[str, Any], done: dict[str, dict[str, Any]], args: argparse.Namespace
) -> str:
    if len(report.get("own_figures", ())) > done[key_of(mutant.subject)].get("own_figures", 0):
        return SAID
    return MISSED if is_reached(mutant, args) else NOT_REACHED


def is_reached(mutant: Mutant, args: argparse.Namespace) -> bool:
    """Return whether a run of the sound script comes to the line that was changed."""
    with tempfile.TemporaryDirectory() as temporary, tokenize.open(mutant.subject.folder / mutant.file) as file:
        mark, text = Path(temporary, "mark"), file.read()
        with_mark = marked(text, mutant.line, mark)
        run(mutant.subject, {mutant.file: with_mark.encode(file.encoding)}, args.time_limit)
        return mark.exists() or with_mark == text


def failed_in(report: dict[str, Any]) -> list[list[str]]:
    """Return the failed checks, each with its cause."""
    failed = [verdict for verdict in report.get("verdicts", ()) if verdict["status"] == "FAIL"]
    return [[verdict["check"], verdict["cause"] or ""] for verdict in failed]


def fails_alone(report: dict[str, Any]) -> bool:
    """Return whether the script fails on one process, without any other."""
    return any(run["name"] == "one" and run["status"].startswith("failed") for run in report.get("runs", ()))


def said_by(report: dict[str, Any]) -> str:
    return ", ".join(f"{check} {cause or '-'}" for check, cause in failed_in(report)) or report.get("conclusion", "")


def run(subject: Subject, changed: dict[str, bytes], time_limit: float) -> tuple[int, dict[str, Any]]:
    """Return the exit status of `verify` on a subject with some files changed, and its report."""

    def make(project: Path) -> None:
        shutil.copytree(subject.folder, project, ignore=shutil.ignore_patterns("__pycache__"))
        for name, data in changed.items():
            (project / name).write_bytes(data)
        if subject.before is not None:
            shutil.copytree(subject.before, project / BEFORE)

    options = ["--hang-after", "8", *subject.options, subject.entry, "--", *subject.arguments]
    status, report, error = verified(make, options, time_limit)
    return status, report or {"conclusion": error}


# --- what came out


def results_of(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}


def note(row: dict[str, Any], done: dict[str, dict[str, Any]], path: Path | None) -> None:
    done[row["key"]] = row
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    if row["outcome"] in (MISSED, "FALSE ALARM"):
        tqdm.write(f"{row['outcome']}: {row['key']}: {row['said'][:150]}")


def table(rows: Any) -> str:
    """Return the table by operator, its totals, and the sound scripts that were accused."""
    reasons = {entry["key"]: entry["reason"] for entry in json.loads((HERE / "equivalent.json").read_text())}
    counts: dict[str, Counter[str]] = {}
    accused, sound = [], Counter[str]()
    for row in rows:
        if row["operator"] == SOUND:
            sound[row["subject"]] += 1
            accused += [f"{row['subject']}: {row['said']}"] if row["outcome"] == "FALSE ALARM" else []
            continue
        outcome = EQUIVALENT if row["key"] in reasons and row["outcome"] == MISSED else row["outcome"]
        counts.setdefault(row["operator"], Counter())[outcome] += 1
    lines = [
        "| Mistake | Made | Caught | Right cause | Said after a PASS | Missed | Train as before | Not reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [name for name in OPERATORS if name in counts]:
        lines.append(f"| {OPERATORS[name].title} (`{name}`) | {_cells(counts[name])} |")
    everything = sum(counts.values(), Counter())
    lines.append(f"| **All** | {_cells(everything)} |")
    return "\n".join(
        [
            *lines,
            "",
            f"{sum(sound.values())} runs of {len(sound)} sound scripts, {len(accused)} with a finding"
            + (":" if accused else ""),
            "",
            *(f"- {said}: {runs} times" for said, runs in Counter(accused).items()),
        ]
    )


def _cells(count: Counter[str]) -> str:
    caught = count[CAUGHT] + count[OTHER_CAUSE]
    made = caught + count[SAID] + count[MISSED]
    share = f"{caught} ({caught / made:.1%})" if made else "0"
    shown = [made, share, *(count[one] for one in (CAUGHT, SAID, MISSED, EQUIVALENT, NOT_REACHED))]
    return " | ".join(map(str, shown))


if __name__ == "__main__":
    sys.exit(main())
