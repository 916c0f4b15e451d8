"""Compare what `retrofit plan` predicts of a step with what it takes, for 12 trainings over 4 links (Linux, root).

  python benchmarks/plan_accuracy.py --results FILE               all; what FILE holds is not measured again
  python benchmarks/plan_accuracy.py --results FILE --projects gpt vit --links 1gbit 100mbit
  python benchmarks/plan_accuracy.py --results FILE --summary     the tables of what FILE holds, nothing is run

Each training of benchmarks/planned/ is profiled as `retrofit plan` does it, on two processes that do not communicate,
and then trains on two ranks with each strategy (DDP by hand, torch's hook, `no_sync`, `fully_shard`), 10 to 24 steps
of each, in one start. `loopback` is two processes of one host; the other links join two network namespaces, with the
rate that tc allows. A link is measured once, as `torchrun ... -m retrofit.plan.link` does it. The row `none` trains
without a strategy, two processes at once: what differs there is the machine, not the prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "planned"
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(FOLDER)]

from models import PROJECTS  # noqa: E402
from two_hosts import INTERFACES, TwoHosts, two_hosts  # noqa: E402

from retrofit.plan.link.link import Link, read_link  # noqa: E402
from retrofit.plan.link.measure import measure_here  # noqa: E402
from retrofit.plan.predict.prediction import STRATEGIES, predictions  # noqa: E402
from retrofit.plan.profile.profile import Profile, read_profile  # noqa: E402
from retrofit.plan.profile.run import profiled  # noqa: E402
from retrofit.why.run import Start  # noqa: E402

LINKS = {"loopback": 0, "10gbit": 10_000, "1gbit": 1_000, "100mbit": 100}  # 10^6 bits per second
NONE, TIME_LIMIT_S = "none", 600.0
WARM_UP, PROFILED = 6, 30  # steps
STEPS = {"loopback": 24, "10gbit": 24, "1gbit": 20, "100mbit": 10}
MEASURED = [strategy.name for strategy in STRATEGIES if not strategy.name.startswith("zero")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="a line of JSON per training")
    parser.add_argument("--projects", nargs="+", choices=PROJECTS, default=list(PROJECTS))
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--summary", action="store_true", help="print the tables, run nothing")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.is_file() else []
    if not args.summary:
        known = {(row["link"], row["project"]) for row in done}
        for name in args.links:
            wanted = [project for project in args.projects if (name, project) not in known]
            done += measured_over(name, wanted, args.results) if wanted else []
    print(summary(done))
    return 0


def measured_over(name: str, projects: Sequence[str], results: Path) -> list[dict[str, Any]]:
    """Measure the link and each project over it; write a line for each."""
    rows = []
    with two_hosts() if LINKS[name] else nullcontext() as hosts:
        if hosts:
            hosts.slow_down(LINKS[name])
        link = link_over(hosts) if hosts else measure_here(2)
        for project in tqdm(projects, desc=name):
            with profiled(
                Start(FOLDER / "train.py", FOLDER, ["--project", project], PROFILED, TIME_LIMIT_S), 2, 0
            ) as folder:
                profile = read_profile(folder)
            rows.append(row(name, project, profile, link, seconds_of(project, name, hosts)))
            with results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


def row(name: str, project: str, profile: Profile, link: Link, seconds: dict[str, list[float]]) -> dict[str, Any]:
    settled = {strategy: median(steps[WARM_UP:]) for strategy, steps in seconds.items()}
    predicted = {one.strategy.name: [one.seconds, one.low, one.high] for one in predictions(profile, link, 2, 1, False)}
    return {
        "link": name, "project": project, "profile": profile.seconds, "measured": settled, "predicted": predicted,
        "parts": {part: getattr(profile, part) for part in ("loading", "forward", "backward", "optimizer", "rest")},
    }  # fmt: skip


def link_over(hosts: TwoHosts) -> Link:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "link.json"
        on_both(hosts, ["-m", "retrofit.plan.link", "--output", str(file)], {})
        return read_link(file)


def seconds_of(project: str, link: str, hosts: TwoHosts | None) -> dict[str, list[float]]:
    """Return the seconds of each step under each strategy."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "seconds.json"
        command = [str(FOLDER / "train.py"), "--project", project, "--steps", str(WARM_UP + STEPS[link])]
        on_both(hosts, command, {"STRATEGY": ";".join([NONE, *MEASURED]), "SECONDS": str(file)})
        return json.loads(file.read_text())


def on_both(hosts: TwoHosts | None, command: Sequence[str], variables: dict[str, str]) -> None:
    """Run a command by torchrun: on both hosts, or on two processes of this one. Raises RuntimeError where it fails."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": FOLDER}
    if hosts is None:
        started = [
            subprocess.Popen([*torchrun, "--standalone", "--nproc_per_node=2", *command], env=environ, **options)
        ]
    else:
        shared = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=10.77.0.1", "--master_port=29611"]
        started = [
            hosts.popen(
                host, [*torchrun, *shared, f"--node_rank={host}", *command],
                env={**environ, "GLOO_SOCKET_IFNAME": INTERFACES[host]}, **options,
            )
            for host in (0, 1)
        ]  # fmt: skip
    said = [process.communicate(timeout=TIME_LIMIT_S)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("\n".join(text[:3000] for text in said))


# --- tables


def summary(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| Link | Strategy | Trainings | Median error | Of nine in ten, at most | In the interval |",
        "|---|" + "---|" * 5,
    ]
    errors: dict[str, list[float]] = defaultdict(list)
    for link in [*LINKS, "all"]:
        for strategy in [*MEASURED, "all"]:
            found = list(compared(rows, link, strategy))
            if found:
                off = [abs(error) for error, _ in found]
                inside = sum(is_inside for _, is_inside in found)
                lines.append(
                    f"| {link} | {strategy} | {len(off)} | {median(off):.1%} | {highest_of_nine(off):.1%} | "
                    f"{inside} of {len(off)} |"
                )
                errors[strategy] += [error for error, _ in found] if link != "all" else []
    drift = [abs(row["measured"][NONE] / row["profile"] - 1) for row in rows]
    of_drift = f"median {median(drift):.1%}, nine of ten {highest_of_nine(drift):.1%}"
    lines.append(f"\nwithout a strategy, against the profile: {of_drift}")
    chosen = [choice(row) for row in rows]
    lines.append(
        f"chosen among the same trainings (ddp, fsdp, grad-op): slower than the best by {max(chosen):.1%} at most, "
        f"by more than 3 % in {sum(one > 0.03 for one in chosen)} of {len(chosen)}"
    )
    return "\n".join(lines)


def compared(rows: Sequence[dict[str, Any]], link: str, strategy: str) -> Iterator[tuple[float, bool]]:
    for row in rows:
        for name, (seconds, low, high) in row["predicted"].items():
            measured = row["measured"].get(name)
            if measured and link in (row["link"], "all") and strategy in (name, "all"):
                yield seconds / measured - 1, low <= measured <= high


def choice(row: dict[str, Any]) -> float:
    """Return how much slower the strategy with the best prediction is than the best one."""
    same = [strategy.name for strategy in STRATEGIES if strategy.is_same and strategy.name in row["measured"]]
    best = min(same, key=lambda name: row["predicted"][name][0])
    return row["measured"][best] / min(row["measured"][name] for name in same) - 1


def highest_of_nine(values: Sequence[float]) -> float:
    return quantiles(values, n=10)[-1] if len(values) > 1 else values[0]


if __name__ == "__main__":
    sys.exit(main())
