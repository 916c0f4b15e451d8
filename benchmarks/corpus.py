"""Convert real projects from outside this repository, run them on one and on two processes, and print what came of it.

  python benchmarks/corpus.py --recipes DIR --sources DIR --venv DIR [--only NAME ...] [--output FILE]

`--recipes` holds one shell script per project (NAME.sh prep | run), which makes a fresh copy of the project in $WORK
with tiny made-up data and runs it with $LAUNCH; `--sources` the projects themselves (owner__name), `--venv` a virtual
environment with what they import. The recipes observe the runs (losses, gradient and parameter norms, sample indices,
written files), without a change to the source.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PAGE = """\
# Real projects

Written by `python benchmarks/corpus.py --output docs/corpus.md` on {date}, at commit {commit}, with Python {python}
on {cores} CPU cores (gloo): real training projects, each with tiny made-up data, run as they are, then converted and
run on one process and on two, without an edit by hand.

{summary}.

- `lines`: inserted and changed lines in the project's own files.
- `world_1`: losses, gradient norms and parameter norms of every step on one process, against the original's.
- `two_ranks`: seconds of the run on two processes with `RETROFIT_BATCH=global`.
- `ranks_equal`: the parameters of both ranks after every step; `samples_once`: the batches of both together against
  those of one process, step by step; `single_writer`: files that rank 1 wrote.
- `parity`: losses, gradients and parameters of the first three steps in float64, against one process; else the largest
  relative difference of the losses and of the weights. Another first step is to be expected where the loop draws noise
  (GANs, the VAE, Informer's sampled attention), where the loss couples the samples of a batch (Dice, YOLO) or is
  divided by their number once more, and in float32.

{table}"""
NOT_RECIPES = ("00_", "lib", "all_", "emulate")
TOLERANCE = 1e-6  # of norms and losses over the first steps, in float64
FIRST_STEPS = 3  # deep networks multiply rounding with every step
ENTRY_SCRIPT = '#!/bin/sh\npwd > "$ENTRY_FILE"\nprintf "%s\\n" "$1" >> "$ENTRY_FILE"\n'
COLUMNS = ("outcome", "lines", "world_1", "two_ranks", "ranks_equal", "samples_once", "single_writer", "parity")


@dataclass
class Row:
    """What came of one project; an empty field was not reached."""

    name: str
    outcome: str = ""
    lines: int = 0
    world_1: str = ""
    two_ranks: str = ""
    ranks_equal: str = ""
    samples_once: str = ""
    single_writer: str = ""
    parity: str = ""
    notes: list[str] = field(default_factory=list)


def main() -> int:
    args = parse_arguments()
    rows = []
    for name in tqdm(args.only or recipes_in(args.recipes)):
        row = judge(Bench(args, name))
        tqdm.write(json.dumps(asdict(row)))
        rows.append(row)
    print(table(rows, args))
    if args.output:
        args.output.write_text(page(rows, args), encoding="utf-8")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, required=True, metavar="DIR", help="one NAME.sh per project")
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="the projects, as owner__name")
    parser.add_argument("--venv", type=Path, required=True, metavar="DIR", help="virtual environment of the projects")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where the runs happen")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these projects (default: all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there as Markdown (default: no)")
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

    def recipe(self, run: str, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            "CORPUS": str(self.args.sources.resolve()),
            "VENV": str(self.args.venv.resolve()),
            "MIRROR": str(self.args.sources.resolve()),
            "WORK": str(self.folder / run),
            "COMPAT_EXACT": "1",
            "OMP_NUM_THREADS": "1",
            **{f"{key}_LOG": str(self.folder / f"{run}.{key.lower()}") for key in ("LOSS", "IDX", "WRITE")},
            **variables,
        }
        command = ["bash", str(self.args.recipes.resolve() / f"{self.name}.sh"), step]
        try:
            return subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=self.args.timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(command, 124, str(error.stdout or ""), "timed out")

    def entry(self, run: str) -> Path:
        """Return the script that the recipe starts: what it hands to $LAUNCH."""
        script, answer = self.folder / "entry.sh", self.folder / "entry.txt"
        script.write_text(ENTRY_SCRIPT)
        script.chmod(0o755)
        answer.unlink(missing_ok=True)
        self.recipe(run, "run", LAUNCH=str(script), ENTRY_FILE=str(answer))
        folder, name = answer.read_text().splitlines()
        return Path(folder) / name

    def log(self, run: str, kind: str) -> dict[int, list[dict[str, Any]]]:
        found = {}
        for path in sorted(self.folder.glob(f"{run}.{kind}.rank*")):
            found[int(path.suffix[5:])] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return found


def judge(bench: Bench) -> Row:
    """Run the original, convert a copy, run it on one and on two processes, and compare."""
    row = Row(bench.name)
    for path in bench.folder.glob("*.rank*"):
        path.unlink()
    bench.recipe("original", "prep")
    if not ran(bench.recipe("original", "run"), bench, "original"):
        row.outcome = "original fails"
        return row
    bench.recipe("converted", "prep")
    entry = bench.entry("converted")
    for path in bench.folder.glob("converted.*.rank*"):
        path.unlink()
    if not convert(entry, row):
        return row
    one = bench.recipe("converted", "run")
    row.world_1 = "bit-equal" if ran(one, bench, "converted") and same_losses(bench) else "differs"
    if not ran(one, bench, "converted"):
        row.world_1 = "fails"
        row.notes.append(last_line(one))
    bench.recipe("two", "prep")
    convert(bench.entry("two"), Row(bench.name))
    for path in bench.folder.glob("two.*.rank*"):
        path.unlink()
    started = time.perf_counter()
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2"
    venv = bench.args.venv.resolve() / "bin" / "python"
    torchrun = torchrun.replace(sys.executable, str(venv))
    two = bench.recipe("two", "run", LAUNCH=torchrun, RETROFIT_BATCH="global", RETROFIT_BATCHNORM="local")
    row.two_ranks = f"{time.perf_counter() - started:.0f} s" if ran(two, bench, "two") else "fails"
    if row.two_ranks == "fails":
        row.notes.append(last_line(two))
        return row
    compare(bench, row)
    return row


def ran(result: subprocess.CompletedProcess[str], bench: Bench, run: str) -> bool:
    """Return whether a run ended well; a recipe's own limit on backward calls ends it with status 0."""
    failed = "Traceback (most recent call last)" in result.stdout or result.returncode != 0
    return not failed and bool(bench.log(run, "loss"))


def convert(entry: Path, row: Row) -> bool:
    command = [
        sys.executable,
        "-m",
        "retrofit",
        "convert",
        str(entry),
        "--root",
        str(entry.parent),
        "--write",
        "--force",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    added = [line for line in result.stdout.splitlines() if line.startswith("+") and not line.startswith("+++")]
    row.lines = len(added)
    row.outcome = {0: "converted", 1: "refused"}.get(result.returncode, "error")
    if result.returncode:
        row.notes.append(result.stderr.strip().splitlines()[0] if result.stderr.strip() else "no message")
    return result.returncode == 0


def same_losses(bench: Bench) -> bool:
    return bench.log("original", "loss").get(0) == bench.log("converted", "loss").get(0)


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (result.stdout + result.stderr).splitlines() if "Error: " in line]
    return (lines or (result.stdout + result.stderr).splitlines() or ["no output"])[-1][:200]


def compare(bench: Bench, row: Row) -> None:
    one, ranks = bench.log("original", "loss")[0], bench.log("two", "loss")
    steps = {rank: [e for e in events if "step" in e] for rank, events in ranks.items()}
    losses = {rank: [e["loss"] for e in events if "loss" in e] for rank, events in ranks.items()}
    row.ranks_equal = yes(len(ranks) == 2 and all(s["pnorm"] for s in steps[0]) and same_norms(steps))
    ours, theirs = [e for e in one if "step" in e], steps[0]
    single = [e["loss"] for e in one if "loss" in e]
    mean = [sum(values) / len(values) for values in zip(*losses.values())]
    pairs = [(a["pnorm"], b["pnorm"]) for a, b in zip(ours, theirs)] + [
        (a["gnorm"], b["gnorm"]) for a, b in zip(ours, theirs)
    ]
    difference = max((relative(a, b) for a, b in pairs[:FIRST_STEPS] if a and b), default=1.0)
    of_loss = max((relative(a, b) for a, b in zip(single[:FIRST_STEPS], mean)), default=1.0)
    row.parity = "yes" if max(difference, of_loss) < TOLERANCE else f"loss {of_loss:.0e}, weights {difference:.0e}"
    row.samples_once = samples_once(bench)
    writers = {rank: events for rank, events in bench.log("two", "write").items() if rank}
    foreign = [" ".join(e["t"]) for events in writers.values() for e in events if not is_own(e, bench)]
    row.single_writer = yes(not foreign)
    row.notes += sorted(set(foreign))[:3]


def is_own(event: dict[str, Any], bench: Bench) -> bool:
    """Return whether a write is of the observation itself or outside the project, or makes a folder that may exist."""
    if event["ev"] in ("os.mkdir", "subprocess.Popen", "socket.connect"):
        return True
    places = [os.path.join(event["cwd"], target) for target in event["t"]]
    return all(
        ".rank" in place or "__pycache__" in place or not place.startswith(str(bench.folder)) for place in places
    )


def same_norms(steps: dict[int, list[dict[str, Any]]]) -> bool:
    first, *others = steps.values()
    return all([s["pnorm"] for s in other] == [s["pnorm"] for s in first] for other in others)


def samples_once(bench: Bench) -> str:
    """Return whether the ranks' batches together hold the samples of the single process's batches, step by step.

    Batches of the training set are known by its length. Where the validation set has the same, an evaluation that is
    shared out, or repeated, ends the comparison: the answer is then how many leading batches agree.
    """
    one, ranks = bench.log("original", "idx"), bench.log("two", "idx")
    if not one or not ranks or not one[0]:
        return "?"
    length = one[0][0].get("n")
    single = [e["idx"] for e in one[0] if e.get("n") == length and isinstance(e["idx"], list)]
    shares = [
        [e["idx"] for e in events if e.get("n") == length and isinstance(e["idx"], list)] for events in ranks.values()
    ]
    together = [sorted(chain(*batches)) for batches in zip(*shares)]
    number = min(len(single), len(together))
    agree = [sorted(a) == b for a, b in zip(single, together)]
    leading = agree.index(False) if False in agree else number
    return "yes" if 0 < number == leading else f"first {leading} of {number}" if leading >= FIRST_STEPS else "NO"


def relative(a: float, b: float) -> float:
    return abs(a - b) / max(1e-8, abs(a), abs(b))


def yes(value: bool) -> str:
    return "yes" if value else "NO"


def table(rows: list[Row], args: argparse.Namespace) -> str:
    lines = ["| project | " + " | ".join(COLUMNS) + " | notes |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in rows:
        cells = [str(getattr(row, column)) for column in COLUMNS]
        lines.append(f"| {source_of(row.name, args)} | {' | '.join(cells)} | {'; '.join(row.notes)} |")
    return "\n".join(lines) + "\n"


def source_of(name: str, args: argparse.Namespace) -> str:
    """Return a recipe's name with its repository and the commit of that."""
    found = re.search(r"get_src ([\w-]+?)__([\w.-]+)", (args.recipes / f"{name}.sh").read_text(encoding="utf-8"))
    if found is None:
        return name
    command = ["git", "-C", str(args.sources / f"{found[1]}__{found[2]}"), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{name} ({found[1]}/{found[2]} @ {commit or 'unknown'})"


def page(rows: list[Row], args: argparse.Namespace) -> str:
    """Return the table with what was run, when, and what the columns mean."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return PAGE.format(
        date=time.strftime("%Y-%m-%d"),
        commit=commit,
        python=platform.python_version(),
        cores=os.cpu_count(),
        summary=summary(rows),
        table=table(rows, args),
    )


def summary(rows: list[Row]) -> str:
    converted = [row for row in rows if row.outcome == "converted"]
    lines = sorted(row.lines for row in converted)
    equal = sum(row.world_1 == "bit-equal" for row in converted)
    ran = sum(bool(row.ranks_equal) for row in converted)
    facts = [
        f"{len(converted)} of {len(rows)} projects converted with no edit by hand "
        f"({lines[0]} to {lines[-1]} added lines, median {statistics.median(lines):g})",
        f"{equal} of them are bit-equal on one process",
        f"{ran} ran to the end on two",
        f"in {sum(row.ranks_equal == 'yes' for row in converted)} both ranks hold the same parameters after every step",
        f"in {sum(row.single_writer == 'yes' for row in converted)} rank 0 alone writes",
        f"in {sum(row.parity == 'yes' for row in converted)} losses, gradients and parameters of the first steps are "
        "those of one process",
        f"{sum(row.outcome == 'refused' for row in rows)} are refused",
    ]
    return "; ".join(facts)


if __name__ == "__main__":
    sys.exit(main())
