"""Convert real projects from outside this repository, run them on one to three processes, and print what came of it.

  python benchmarks/corpus.py --recipes DIR --sources DIR --venv DIR --work DIR [--only NAME ...] [--output FILE]

`--recipes` holds one shell script per project (NAME.sh prep | run), which makes a fresh copy of the project in $WORK
with tiny made-up data and runs it with $LAUNCH; `--sources` the projects themselves (owner__name), `--venv` a virtual
environment with what they import. The recipes observe the runs (losses, gradient and parameter norms, written files)
without a change to the source, and so does corpus_observer.py (samples of each step, torch.save).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from corpus_compare import FIRST_STEPS, default_mode, foreign_writes, parity, ranks_equal, samples_once, yes
from corpus_page import ROOT, Row, page, table
from tqdm import tqdm

OBSERVER = Path(__file__).resolve().with_name("corpus_observer.py")
NOT_RECIPES = ("00_", "lib", "all_", "emulate")
ENTRY_SCRIPT = '#!/bin/sh\npwd > "$ENTRY_FILE"\nprintf "%s\\n" "$1" >> "$ENTRY_FILE"\n'
SHARE = "rank 0's share"  # how `retrofit convert` lists a figure that it leaves unreduced
GLOBAL = {"RETROFIT_BATCH": "global", "RETROFIT_BATCHNORM": "local"}
FEW_STEPS = {"COMPAT_MAX_BACKWARD": str(FIRST_STEPS + 1)}


def main() -> int:
    args = parse_arguments()
    rows = []
    for name in tqdm(args.only or recipes_in(args.recipes)):
        row = judge(Bench(args, name))
        tqdm.write(json.dumps(asdict(row)))
        rows.append(row)
        if args.output:  # what has been measured is kept when a later project ends the run
            args.output.write_text(page(rows, args), encoding="utf-8")
    print(table(rows, args))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, required=True, metavar="DIR", help="one NAME.sh per project")
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="the projects, as owner__name")
    parser.add_argument("--venv", type=Path, required=True, metavar="DIR", help="virtual environment of the projects")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where the runs happen")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these projects (default: all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there as Markdown (default: no)")
    parser.add_argument("--explanations", type=Path, metavar="FILE", help="text for the page, below the table (no)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one run (default: 300)")
    return parser.parse_args()


def recipes_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.sh") if not path.stem.startswith(NOT_RECIPES))


class Bench:
    """Runs one recipe in folders of its own."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args, self.name = args, name
        self.folder = args.work.resolve() / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.python = str(args.venv.resolve() / "bin" / "python")

    def recipe(self, run: str, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            "CORPUS": str(self.args.sources.resolve()),
            "VENV": str(self.args.venv.resolve()),
            "MIRROR": str(self.args.sources.resolve()),
            "WORK": str(self.folder / run),
            "COMPAT_EXACT": "1",
            "OMP_NUM_THREADS": "1",
            **{f"{key}_LOG": str(self.folder / f"{run}.{key.lower()}") for key in ("LOSS", "WRITE")},
            "OBSERVED": str(self.folder / f"{run}.observed"),
            "ODD_EVALUATION": "1",
            **variables,
        }
        environ.pop("PYTHONPATH", None)  # the kit's own utils.py is none of the project's modules
        command = ["bash", str(self.args.recipes.resolve() / f"{self.name}.sh"), step]
        try:
            return subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=self.args.timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(command, 124, str(error.stdout or ""), "timed out")

    def train(self, run: str, world_size: int = 1, **variables: str) -> tuple[subprocess.CompletedProcess[str], str]:
        """Run a prepared copy; return what it printed, and how long it took or "fails"."""
        for path in self.folder.glob(f"{run}.*.rank*"):
            path.unlink()
        torchrun = f"-m torch.distributed.run --standalone --nproc_per_node={world_size} " if world_size > 1 else ""
        started = time.perf_counter()
        result = self.recipe(run, "run", LAUNCH=f"{self.python} {torchrun}{OBSERVER}", **variables)
        seconds = f"{time.perf_counter() - started:.0f} s"
        # A recipe's own limit on backward calls ends it with status 0.
        failed = "Traceback (most recent call last)" in result.stdout or result.returncode != 0
        return result, "fails" if failed or not self.log(run, "loss") else seconds

    def entry(self, run: str) -> Path:
        """Return the script that the recipe starts: what it hands to $LAUNCH."""
        script, answer = self.folder / "entry.sh", self.folder / "entry.txt"
        script.write_text(ENTRY_SCRIPT)
        script.chmod(0o755)
        answer.unlink(missing_ok=True)
        self.recipe(run, "run", LAUNCH=str(script), ENTRY_FILE=str(answer))
        folder, name = answer.read_text().splitlines()
        return Path(folder) / name

    def log(self, run: str, kind: str) -> dict[int, list[dict]]:
        found = {}
        for path in sorted(self.folder.glob(f"{run}.{kind}.rank*")):
            found[int(path.suffix[5:])] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return found


def judge(bench: Bench) -> Row:
    """Run the original, convert copies of it, run them on one to three processes, and compare."""
    row = Row(bench.name)
    bench.recipe("original", "prep")
    result, outcome = bench.train("original")
    if outcome == "fails":
        row.outcome = "original fails"
        row.notes.append(last_line(result))
        return row
    if not convert(bench, "converted", row):
        return row
    result, outcome = bench.train("converted")
    row.world_1 = "bit-equal" if same_losses(bench) else "differs"
    if outcome == "fails":
        row.world_1 = "fails"
        row.notes.append(last_line(result))
    convert(bench, "two", Row(bench.name))
    result, row.two_ranks = bench.train("two", 2, **GLOBAL)
    if row.two_ranks == "fails":
        row.notes.append(last_line(result))
        return row
    compare(bench, row)
    compare_default_mode(bench, row)
    return row


def compare(bench: Bench, row: Row) -> None:
    """Fill the columns about two processes with the global batch."""
    one, ranks = bench.log("original", "loss"), bench.log("two", "loss")
    row.ranks_equal = ranks_equal(ranks, 2)
    row.parity = parity(one, ranks)
    row.samples_once = samples_once(bench.log("original", "observed"), bench.log("two", "observed"))
    foreign = foreign_writes(bench.log("two", "write"), bench.log("two", "observed"), str(bench.folder))
    row.single_writer = yes(not foreign)
    row.notes += foreign[:3]


def compare_default_mode(bench: Bench, row: Row) -> None:
    """Fill the columns about the default mode, in which every process has the script's batch size."""
    bench.recipe("larger", "prep")
    lengths = {event["n"] for event in bench.log("original", "observed").get(0, []) if event.get("n")}
    larger = {"BATCH_FACTOR": "2", "TRAINING_LENGTHS": " ".join(map(str, lengths))}
    bench.train("larger", **larger, **FEW_STEPS)
    convert(bench, "default", Row(bench.name))
    bench.train("default", 2, RETROFIT_BATCHNORM="local", **FEW_STEPS)
    logs = [bench.log(run, "loss") for run in ("original", "larger", "default")]
    row.default_mode = default_mode(*logs)
    convert(bench, "three", Row(bench.name))
    result, row.three_ranks = bench.train("three", 3, RETROFIT_BATCHNORM="local")
    if row.three_ranks == "fails":
        row.notes.append(f"three ranks: {last_line(result)}")
    elif ranks_equal(bench.log("three", "loss"), 3) != "yes":
        row.notes.append("three ranks differ")


def convert(bench: Bench, run: str, row: Row) -> bool:
    """Make a fresh copy of the project and convert it; return whether that was done."""
    bench.recipe(run, "prep")
    entry = bench.entry(run)
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from retrofit.cli import main; sys.exit(main())"
    root = bench.folder / run / "src"  # of the repository: modules that the script imports may be next to its folder
    command = [sys.executable, "-I", "-c", start, "convert", str(entry), "--root", str(root), "--write"]
    result = subprocess.run([*command, "--force"], capture_output=True, text=True, check=False)
    added = [line for line in result.stdout.splitlines() if line.startswith("+") and not line.startswith("+++")]
    row.lines = len(added)
    row.listed = [line for line in result.stderr.splitlines() if SHARE in line]
    row.outcome = {0: "converted", 1: "refused"}.get(result.returncode, "error")
    if result.returncode:
        row.notes.append(result.stderr.strip().splitlines()[0] if result.stderr.strip() else "no message")
    return result.returncode == 0


def same_losses(bench: Bench) -> bool:
    return bench.log("original", "loss").get(0) == bench.log("converted", "loss").get(0)


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "Error: " in line]
    return (lines or (result.stdout + result.stderr).splitlines() or ["no output"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main())
