"""Measure `retrofit convert`: CPU seconds beyond its start-up, by the size of the project, as a ratio to parsing it.

  python benchmarks/convert_speed.py                    projects of 500 to 5,000 lines; two minutes
  python benchmarks/convert_speed.py --sizes 2000       one size

Each round runs the conversion (shown, not written), the start-up (`retrofit rules RF103`) and the parsing of all files
by Python's own `ast.parse` in turn; the median of the rounds is given, and that of the ratios round by round.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from generated_project import write_project

ROOT = Path(__file__).resolve().parents[1]
RETROFIT = [sys.executable, "-m", "retrofit"]
# As many times as makes the parsing long enough to be measured.
PARSING = """\
import ast, pathlib, sys, time
texts = [path.read_text(encoding="utf-8") for path in pathlib.Path(sys.argv[1]).rglob("*.py")]
start = time.process_time()
for _ in range(20):
    for text in texts:
        ast.parse(text)
print((time.process_time() - start) / 20)
"""


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Return the CPU time of a command, of its user and system parts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def parsing_seconds(folder: Path) -> float:
    command = [sys.executable, "-c", PARSING, str(folder)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [500, 1000, 2000, 5000]
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=sizes, help="lines of the projects (default: 500 to 5000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default: %(default)s)")
    args = parser.parse_args()
    print("lines  convert beyond start-up  start-up  parsing  ratio to parsing")
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "project")
            script, lines = write_project(folder, size)
            rows = []
            for _ in range(args.rounds):
                whole = cpu_seconds([*RETROFIT, "convert", script.name], folder)
                start = cpu_seconds([*RETROFIT, "rules", "RF103"], folder)
                parsing = parsing_seconds(folder)
                rows.append((whole - start, start, parsing, (whole - start) / parsing))
        own, start, parsing, ratio = (statistics.median(values) for values in zip(*rows))
        print(f"{lines:5}  {own:21.2f} s  {start:6.2f} s  {parsing * 1000:4.0f} ms  {ratio:16.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
