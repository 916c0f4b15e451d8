"""Time per step and start of one training: converted by retrofit, DDP by hand, Accelerate and Fabric, in turns.

  python benchmarks/loop_speed.py                                   two processes, 24 rounds, a few minutes
  python benchmarks/loop_speed.py --width 64 --hidden 1024          longer steps

The loops are in benchmarks/loops/, each started by torchrun as a program of its own; `converted` is legacy.py after
`retrofit convert --write`. They wait for each other: in every round each runs one epoch, in an order that changes from
round to round. Ratios are formed round by round; the median is given, the 95 % interval of it that the sign test gives,
and the range.
The start is from the command to the end of the first step, of its own starts in turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import comb
from multiprocessing.connection import Listener
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from rounds import command, environment, median_and_range, text_table  # noqa: E402
from tqdm import tqdm  # noqa: E402

LOOPS = ROOT / "benchmarks" / "loops"
BY_HAND = "by_hand"
SCRIPTS = {"converted": "legacy.py", BY_HAND: "by_hand.py", "accelerate": "with_accelerate.py"}
SCRIPTS["fabric"] = "with_fabric.py"
TITLES = ("loop", "ms per step", "over by hand", "95 % of the median", "start, s", "start over by hand, s")


def main() -> int:
    args = get_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: prepared(name, Path(temporary, name)) for name in args.loops}
        seconds = run_in_turns(args, folders)
        starts = start_in_turns(args, folders)
    steps = args.steps
    rows = []
    for name in args.loops:
        ratios = [own / hand for own, hand in zip(seconds[name], seconds[BY_HAND])]
        later = [own - hand for own, hand in zip(starts[name], starts[BY_HAND])]
        low, high = interval_of_median(ratios)
        per_step = median_and_range((1000 * value / steps for value in seconds[name]), 2)
        interval = f"{low:.3f} .. {high:.3f}"
        rows.append([name, per_step, median_and_range(ratios), interval, median_and_range(starts[name], 2)])
        rows[-1].append(median_and_range(later, 2))
    size = f"width {args.width}, hidden {args.hidden}, batch {args.batch_size} per process, {steps} steps per epoch"
    print(f"{command()}\n{environment()}; {args.nproc} processes; {size}; rounds: {args.rounds}\n")
    print(text_table(TITLES, rows))
    return 0


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=24, help="epochs of each loop that count, after one of warm-up (default: 24)")
    add("--starts", type=int, default=5, help="starts of each loop (default: 5)")
    add("--nproc", type=int, default=2, help="processes (default: 2)")
    add("--steps", type=int, default=20, help="steps per epoch (default: 20)")
    add("--batch_size", type=int, default=32, help="samples per process and step (default: 32)")
    add("--width", type=int, default=16, help="channels of the first convolution (default: 16)")
    add("--hidden", type=int, default=256, help="units of the classifier (default: 256)")
    add("--loops", nargs="+", choices=SCRIPTS, default=list(SCRIPTS), help="(default: all)")
    args = parser.parse_args()
    args.loops = list(dict.fromkeys([*args.loops, BY_HAND]))
    return args


def prepared(name: str, folder: Path) -> Path:
    """Return a folder with the loops, where legacy.py is converted for the loop of that name."""
    shutil.copytree(LOOPS, folder)
    if name == "converted":
        convert = [sys.executable, "-m", "retrofit", "convert", "legacy.py", "--write"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(convert, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    return folder


class Loop:
    """A loop that torchrun has started, one connection per rank."""

    def __init__(self, name: str, folder: Path, epochs: int, args: argparse.Namespace) -> None:
        self.name = name
        self.turns = Path(tempfile.mkdtemp(dir=folder))
        self.first_steps: list[float] = []  # when they were over
        self.listener = Listener(str(self.turns / "socket"), "AF_UNIX", backlog=args.nproc)
        environ = {
            **os.environ,
            "TURNS": str(self.turns / "socket"),
            "OMP_NUM_THREADS": "1",
            "RETROFIT_LR_SCALE": "none",
        }
        environ.pop("PYTHONPATH", None)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={args.nproc}"]
        options = {"epochs": epochs, "length": args.steps * args.batch_size * args.nproc}
        options |= {"batch_size": args.batch_size, "width": args.width, "hidden": args.hidden}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        self.log = (self.turns / "log").open("w")
        self.started = time.time()
        self.process = subprocess.Popen(
            [*launch, SCRIPTS[name], *words], cwd=folder, env=environ, stdout=self.log, stderr=self.log
        )
        self.ranks = [self.listener.accept() for _ in range(args.nproc)]
        self._wait()

    def run_epoch(self) -> float:
        """Let it run an epoch; return its seconds, of the slowest rank."""
        started = time.perf_counter()
        for rank in self.ranks:
            rank.send("run")
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        try:
            self.first_steps = [stamp for rank in self.ranks for stamp in rank.recv()]
        except EOFError:
            raise SystemExit(f"{self.name} ended early:\n{(self.turns / 'log').read_text()}") from None

    def seconds_of_start(self) -> float:
        """Return the seconds from the command to the end of the first step, of the slowest rank."""
        return max(self.first_steps) - self.started

    def end(self) -> None:
        """Let it end by itself, after its last epoch."""
        for rank in self.ranks:
            rank.send("end")
        if self.process.wait():
            raise SystemExit(f"{self.name} failed:\n{(self.turns / 'log').read_text()}")
        self.listener.close()
        self.log.close()


def run_in_turns(args: argparse.Namespace, folders: dict[str, Path]) -> dict[str, list[float]]:
    """Return the seconds of the epochs of each loop, one per round."""
    loops = {name: Loop(name, folder, args.rounds + 1, args) for name, folder in folders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in tqdm(range(args.rounds + 1), desc="rounds"):
        order = list(loops)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            elapsed = loops[name].run_epoch()
            if number:
                seconds[name].append(elapsed)
    for loop in loops.values():
        loop.end()
    return seconds


def start_in_turns(args: argparse.Namespace, folders: dict[str, Path]) -> dict[str, list[float]]:
    """Return the seconds of the starts of each loop."""
    seconds: dict[str, list[float]] = {name: [] for name in folders}
    for _ in tqdm(range(args.starts), desc="starts"):
        for name, folder in folders.items():
            loop = Loop(name, folder, 1, args)
            loop.run_epoch()
            loop.end()
            seconds[name].append(loop.seconds_of_start())
    return seconds


def interval_of_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the median is with at least `level` (binomial distribution)."""
    ordered, outside, rank = sorted(values), 0.0, 0
    while rank < len(ordered) // 2 and outside + 2 * comb(len(ordered), rank) / 2 ** len(ordered) <= 1 - level:
        outside += 2 * comb(len(ordered), rank) / 2 ** len(ordered)
        rank += 1
    first = max(rank - 1, 0)
    return ordered[first], ordered[len(ordered) - 1 - first]


if __name__ == "__main__":
    sys.exit(main())
