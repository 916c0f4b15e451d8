"""What the runtime adds to a step of DDP: the comparison of parameters, the watch over backward passes, the journal.

  python benchmarks/consistency.py                                 about two minutes: ResNet-18 on two processes
  python benchmarks/consistency.py --model resnet50 --image_size 128 --steps 10
  python benchmarks/consistency.py --output docs/consistency.md    the table as a document

Differences of a thousandth cannot be seen in the times of whole steps on a machine that does other things as well. So
each part is timed by itself, within the steps of one training: what runs in every step as processor time of the thread
that runs it, a comparison of parameters, which waits for the other process, as time on the clock right after a step.
Both are ratios to the step of the same run, in the same kind of time; shown are medians and ranges over the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torchvision  # noqa: E402
from rounds import command, environment, markdown_table, text_table  # noqa: E402
from torch import nn  # noqa: E402

import retrofit.distributed as rd  # noqa: E402
from retrofit.distributed.ddp import consistency  # noqa: E402
from retrofit.distributed.ddp.gradients import FIRST_PASSES, GradientSync  # noqa: E402
from retrofit.distributed.ddp.wrapper import DDPWrapper  # noqa: E402
from retrofit.distributed.failure import collective_calls  # noqa: E402
from retrofit.distributed.process.process_group import begun_collectives  # noqa: E402

COUNT, WATCH = "consistency check: counting passes", "used parameters, all of them used: the watch over backward"
COMPARE, JOURNAL = f"consistency check: a comparison every {consistency.PERIOD} steps", "journal of collectives"
NUM_COLLECTIVES = 2  # of train.py's step, each of them waited for
CALLS = 2000  # of what is too short to be timed once
PAGE = """\
# What the runtime's checks cost

What `distribute_model` and the journal of collectives add to a step of DistributedDataParallel, by default
(`RETROFIT_CONSISTENCY=first`) and once the first {first} backward passes are over, in which gradients are averaged
after the backward pass instead of during it. Written by

    {command}

{environment}; {setting}. A step took {step:.1f} ms ({cpu:.1f} ms of processor time).

{table}
*of a step* is the median over the steps, with the smallest and the largest: processor time for what runs in every
step; time on the clock, with the wait for the other process, for a comparison ({compared:.2f} ms each). The journal is
counted for {collectives} collectives per step, as in `train.py`; one takes {journal:.1f} us.
"""


class Parts:
    """Processor time of parts of a step, which wrap the functions that they consist of."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = 0.0  # of a part within another one

    def wrap(self, owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner, started = self._inner, 0.0, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - started
                self.seconds[part] += spent - self._inner
                self._inner = outer + spent

        setattr(owner, name, staticmethod(timed) if isinstance(owner.__dict__.get(name), staticmethod) else timed)


def instrument() -> Parts:
    parts = Parts()
    parts.wrap(consistency.ConsistencyCheck, "end_of_pass", COUNT)
    parts.wrap(DDPWrapper, "_follow_changes", WATCH)
    for name in ("watch", "_reach", "_open", "complete", "finish"):
        parts.wrap(GradientSync, name, WATCH)
    return parts


def training(args: argparse.Namespace) -> tuple[Any, Any, Callable[[], None]]:
    """Return a model, its optimizer, and a function that trains one step."""
    torch.manual_seed(0)
    model = rd.distribute_model(getattr(torchvision.models, args.model)(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(args.batchsize, 3, args.image_size, args.image_size), torch.arange(args.batchsize) % 10

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return model, optimizer, step


def measure(rank: int, args: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    parts = instrument()
    model, optimizer, step = training(args)
    check = model.__dict__["_gradient_sync"].compare.__self__
    for _ in range(FIRST_PASSES + 2):
        step()
    check.is_due = False
    rows: dict[str, list[float]] = defaultdict(list)
    journal, hook = journal_seconds(), repeated(lambda: consistency._after_step(optimizer, (), {}))
    times = []
    for _ in range(args.steps):
        parts.seconds.clear()
        check._num_passes = 0  # far from a pass in which parameters are compared
        dist.barrier()
        clock, cpu = time.perf_counter(), time.process_time()
        step()
        clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
        compared = comparison_seconds(check)
        rows[COUNT].append((parts.seconds[COUNT] + hook) / cpu)
        rows[WATCH].append(parts.seconds[WATCH] / cpu)
        rows[JOURNAL].append(NUM_COLLECTIVES * journal / cpu)
        rows[COMPARE].append(compared / consistency.PERIOD / clock)
        times.append((clock, cpu, compared))
    if rank == 0:
        torch.save((dict(rows), times, journal), f"{folder}/answer")
    dist.barrier()
    dist.destroy_process_group()


@torch.no_grad()
def comparison_seconds(check: Any) -> float:
    dist.barrier()
    started = time.perf_counter()
    check._fresh = check._hashes()
    check._compare(False)
    return time.perf_counter() - started


def journal_seconds() -> float:
    """Return what the journal adds to a collective."""

    def nothing() -> None:
        return

    noted = collective_calls.collective(nothing)
    plain = repeated(nothing)
    collective_calls.start_journal(begun_collectives)
    try:
        return repeated(noted) - plain
    finally:
        collective_calls.stop_journal()


def repeated(function: Callable[[], Any]) -> float:
    """Return the processor time of one call in seconds, the median of several measurements."""
    found = []
    for _ in range(7):
        started = time.thread_time()
        for _ in range(CALLS):
            function()
        found.append((time.thread_time() - started) / CALLS)
    return statistics.median(found)


def percent(ratios: list[float]) -> str:
    middle, low, high = (100 * value for value in (statistics.median(ratios), min(ratios), max(ratios)))
    return f"{middle:.4f} % ({low:.4f} .. {high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="of torchvision (default: %(default)s)")
    parser.add_argument("--image_size", type=int, default=64, help="pixels (default: %(default)s)")
    parser.add_argument("--batchsize", type=int, default=8, help="images per process (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="steps that are measured (default: %(default)s)")
    parser.add_argument("--output", help="write the table into this Markdown file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (args, folder), nprocs=2)  # type: ignore[attr-defined]  # raises what a process raises
        rows, times, journal = torch.load(f"{folder}/answer")
    step, cpu, compared = (1e3 * statistics.median(column) for column in zip(*times))
    counted = [sum(pair) for pair in zip(rows[COUNT], rows[COMPARE])]
    table = [[name, percent(rows[name])] for name in (COUNT, COMPARE)]
    table += [
        ["consistency check in all", percent(counted)],
        *([name, percent(rows[name])] for name in (WATCH, JOURNAL)),
    ]
    print(text_table(["part", "of a step"], table))
    print(
        f"step: {step:.1f} ms, {cpu:.1f} ms of processor time; comparison: {compared:.2f} ms; "
        f"journal: {journal * 1e6:.1f} us"
    )
    if args.output:
        setting = (
            f"{args.model} of torchvision, {args.batchsize} images of {args.image_size} pixels on each of 2 processes"
        )
        facts = {"first": FIRST_PASSES, "command": command(), "environment": environment(), "setting": setting}
        facts.update(step=step, cpu=cpu, compared=compared, collectives=NUM_COLLECTIVES, journal=journal * 1e6)
        text = PAGE.format(table=markdown_table(["part", "of a step"], table), **facts)
        Path(args.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
