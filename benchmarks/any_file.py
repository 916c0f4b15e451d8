"""Give every Python file of the installed packages and of the standard library to `retrofit`, each alone.

  python benchmarks/any_file.py                     thousands of files; minutes
  python benchmarks/any_file.py --number 500        some of them, the same ones each time
  python benchmarks/any_file.py --folder PROJECTS   the files of another folder

Nothing may fail, what trains nothing must be left alone, and what is converted must parse and have nothing left to
fix. Exit status: 0 when that holds for all files, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import sysconfig
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from retrofit.analysis.files import modules
from retrofit.convert.plan import plan_conversion
from retrofit.rules.registry import find_all, find_hazards
from retrofit.training import SourceError, read_project

CONVERTED, LEFT_ALONE, UNREADABLE, FAILED = "converted", "left alone", "not readable as Python 3", "failed"


@dataclass(frozen=True)
class Outcome:
    """What came of one file; `problem` says what is wrong with that, "" where nothing is."""

    path: str
    kind: str
    lines: int = 0
    seconds: float = 0.0
    problem: str = ""


def installed_files() -> list[Path]:
    """Return the files of the installed packages and of the standard library."""
    folders = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    return sorted({path for folder in folders for path in folder.rglob("*.py")})


def trains(path: Path) -> bool:
    """Return whether a file may train: whether it says so anywhere, in a comment too."""
    return b"backward" in path.read_bytes()


def examine(path: Path) -> Outcome:
    """Check and convert one file; nothing is written next to it."""
    started = time.perf_counter()
    try:
        kind, problem, lines = _examine(path)
    except SourceError:
        return Outcome(str(path), UNREADABLE)
    except Exception:
        return Outcome(str(path), FAILED, problem=traceback.format_exc(limit=-4))
    return Outcome(str(path), kind, lines, time.perf_counter() - started, problem)


def _examine(path: Path) -> tuple[str, str, int]:
    project = read_project(path)
    lines = len(project.entry.line_starts)
    hazards = list(find_hazards(project))
    conversion = plan_conversion(project)
    if not trains(path) and (hazards or conversion.files):
        return LEFT_ALONE, "it trains nothing, but something is found or changed", lines
    if conversion.refusals or not conversion.files:
        return LEFT_ALONE, "", lines
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, path.name)
        result.write_bytes(conversion.files[0].data)
        again = read_project(result)
        compile(again.entry.text, path.name, "exec", dont_inherit=True)
        left = [f"{finding.code} {finding.place}" for finding in find_all(again) if finding.edits or finding.refusal]
        changed = plan_conversion(again).files
    return CONVERTED, f"the result is not clean: {left}" if left or changed else "", lines


def without_imports() -> None:
    """Let this process read each file alone, not what it imports."""
    modules.MOST_FILES = 1


def main() -> int:
    args = get_arguments()
    files = sorted(args.folder.rglob("*.py")) if args.folder else installed_files()
    if args.number:
        files = random.Random(1).sample(files, min(args.number, len(files)))
    started = time.perf_counter()
    with Pool(args.processes, without_imports, maxtasksperchild=500) as pool:
        outcomes = list(tqdm(pool.imap_unordered(examine, files, chunksize=8), total=len(files), unit="files"))
    return report(outcomes, args, time.perf_counter() - started)


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="its files (default: what is installed)")
    parser.add_argument("--number", type=int, default=0, help="files to take, 0 = all (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="at the same time (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures there as JSON (default: no)")
    return parser.parse_args()


def report(outcomes: list[Outcome], args: argparse.Namespace, seconds: float) -> int:
    """Print what came of the files and return the exit status."""
    problems = sorted((outcome for outcome in outcomes if outcome.problem), key=lambda outcome: outcome.path)
    for outcome in problems:
        print(f"{outcome.path}: {outcome.problem}")
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    lines, busy = sum(outcome.lines for outcome in outcomes), sum(outcome.seconds for outcome in outcomes)
    figures = {
        "environment": {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "files": len(outcomes),
        **Counter(outcome.kind for outcome in outcomes),
        "lines": lines,
        "seconds": round(seconds, 1),
        "lines per second of one process": round(lines / busy),
        "problems": len(problems),
        "slowest": [asdict(outcome) for outcome in slowest],
    }
    print(json.dumps(figures, indent=2))
    if args.output:
        args.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
