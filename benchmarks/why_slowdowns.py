"""Put slowdowns into three trainings, ask `retrofit why` for the cause, and count the right answers.

  python benchmarks/why_slowdowns.py [--seeds 3] [--only KIND ...] [--projects NAME ...] [--results FILE]

Each seed chooses the rank that is slow (0 or 1) and by how much. An answer is right when the first cause is the one
that was put in, with its rank and its part of the step; for a training without a slowdown, when no cause is named. The
slow link is a limit on the loopback device of a network namespace: that kind needs root and `tc`, and is left out
without. Results are added to FILE as they come; what is in it already is not run again. Run it on a machine that does
nothing else: another process on a core is a cause, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "slowdowns"
PROJECTS = ("mlp", "cnn", "transformer")
LATE = "late-rank"
# The answers that are right: name of the cause and, for a rank that is late, the part of its step.
RIGHT = {
    "none": (),
    "data": ((LATE, "data"),),
    "collate": ((LATE, "collate"),),
    "forward": ((LATE, "forward"),),
    "backward": ((LATE, "backward"),),
    "uneven": ((LATE, "samples"),),
    "contention": ((LATE, "core"),),
    "logging": (("logging", "print"), (LATE, "print")),
    "checkpoint": (("saving", "save"), (LATE, "save")),
    "buckets": (("small-buckets", "backward"),),
    "batchnorm": (("sync-batchnorm", "forward"),),
    "threads": (("threads", "core"),),
    "link": (("slow-link", "backward"),),
}
FIXED_RANK = {"logging": 0, "checkpoint": 0, "buckets": None, "batchnorm": None, "threads": None, "link": None}
SPREAD_S = {"mlp": (0.012, 0.03), "cnn": (0.03, 0.08), "transformer": (0.015, 0.04)}  # in each step
SAMPLES_THAT_PAUSE = {"mlp": 16, "cnn": 2, "transformer": 4}  # in a batch
NAMESPACE, RATE = "retrofit_why", {"mlp": "400mbit", "cnn": "60mbit", "transformer": "80mbit"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of each project and kind (default: 3)")
    parser.add_argument("--only", nargs="+", choices=tuple(RIGHT), metavar="KIND", help=f"of {', '.join(RIGHT)}")
    parser.add_argument("--projects", nargs="+", choices=PROJECTS, default=PROJECTS)
    parser.add_argument("--steps", type=int, default=40, help="of each run (default: 40)")
    parser.add_argument("--results", type=Path, help="a file of one JSON object per run, which is added to")
    args = parser.parse_args()
    found = [json.loads(line) for line in args.results.read_text().splitlines()] if _exists(args.results) else []
    done = {(one["project"], one["kind"], one["seed"]) for one in found}
    with throttled_link() as can_throttle:
        for kind in args.only or RIGHT:
            for project in args.projects:
                for seed in range(args.seeds):
                    if (project, kind, seed) in done or (kind == "link" and not can_throttle):
                        continue
                    found.append(judged(project, kind, seed, args.steps))
                    print(json.dumps(found[-1]), flush=True)
                    if args.results:
                        with args.results.open("a") as file:
                            file.write(json.dumps(found[-1]) + "\n")
    print(table(found))
    return 0


def judged(project: str, kind: str, seed: int, steps: int) -> dict[str, Any]:
    """Return what was put into a training, what `retrofit why` says of it, and whether that is right."""
    choice = random.Random(f"{project} {kind} {seed}")
    rank = FIXED_RANK[kind] if kind in FIXED_RANK else choice.randrange(2)
    seconds = choice.uniform(*SPREAD_S[project])
    each = seconds / SAMPLES_THAT_PAUSE[project] if kind == "data" else seconds
    environ = {"SLOW": f"{kind}:{0 if rank is None else rank}:{each}", "SEED": str(seed)}
    card, error = card_of(project, environ, steps, [] if kind != "link" else in_namespace(RATE[project]))
    causes = [(one["name"], one["phase"], one["rank"]) for one in card.get("causes", ())]
    is_right = is_answer(kind, rank, causes) if card else False
    row = {"project": project, "kind": kind, "seed": seed, "rank": rank, "added_ms": round(1e3 * seconds, 1)}
    return {
        **row,
        "right": is_right,
        "causes": causes,
        "step_ms": round(1e3 * card.get("step_s", 0), 1),
        "error": error,
    }


def is_answer(kind: str, rank: int | None, causes: Sequence[tuple[str, str, int | None]]) -> bool:
    """Return whether the first cause is the one that was put in; without one, whether none is named."""
    if not RIGHT[kind] or not causes:
        return not RIGHT[kind] and not causes
    name, phase, late = causes[0]
    return (name, phase) in RIGHT[kind] and (late is None or late == rank)


def card_of(project: str, environ: dict[str, str], steps: int, before: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run `retrofit why`. Return its card, and the last line of its errors."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "project"
        shutil.copytree(FOLDER, place, ignore=shutil.ignore_patterns("__pycache__"))
        card = Path(temporary) / "card.json"
        command = [*before, sys.executable, "-m", "retrofit", "why", f"{project}.py", "-n", "2", "--no-single"]
        command += ["--steps", str(steps), "--html", "", "--json", str(card)]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return (json.loads(card.read_text()), "") if card.is_file() else ({}, last)


@contextmanager
def throttled_link() -> Iterator[bool]:
    """Make a network namespace with a loopback device of its own; give False where that is not allowed."""
    tools = shutil.which("ip") and shutil.which("tc")
    if tools:
        _call("ip", "netns", "delete", NAMESPACE)  # of a run that was killed
    made = bool(tools) and _call("ip", "netns", "add", NAMESPACE)
    try:
        yield made and _call("ip", "netns", "exec", NAMESPACE, "ip", "link", "set", "lo", "up")
    finally:
        if made:
            _call("ip", "netns", "delete", NAMESPACE)


def in_namespace(rate: str) -> list[str]:
    """Limit the loopback device to a rate, and return what runs a command there."""
    inside = ["ip", "netns", "exec", NAMESPACE]
    _call(
        *inside,
        "tc",
        "qdisc",
        "replace",
        "dev",
        "lo",
        "root",
        "tbf",
        "rate",
        rate,
        "burst",
        "256kb",
        "latency",
        "400ms",
    )
    return inside


def _call(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _exists(path: Path | None) -> bool:
    return path is not None and path.is_file()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of Markdown: right answers of runs, by kind and project, and the totals."""
    lines = ["| slowdown | " + " | ".join(PROJECTS) + " |", "|---|" + "---|" * len(PROJECTS)]
    for kind in RIGHT:
        cells = []
        for project in PROJECTS:
            own = [row["right"] for row in rows if (row["project"], row["kind"]) == (project, kind)]
            cells.append(f"{sum(own)} of {len(own)}" if own else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    slowed = [row["right"] for row in rows if row["kind"] != "none"]
    balanced = [row["right"] for row in rows if row["kind"] == "none"]
    lines.append(f"\n{sum(slowed)} of {len(slowed)} slowdowns named with rank and part of the step first")
    lines.append(f"{len(balanced) - sum(balanced)} of {len(balanced)} even runs with a cause named")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
