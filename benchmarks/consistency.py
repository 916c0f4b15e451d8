"""What DDPWrapper adds to plain DistributedDataParallel: the comparison of parameters, the watch over backward passes.

  python benchmarks/consistency.py                                 a few minutes: ResNet-50 on two processes
  python benchmarks/consistency.py --model resnet18 --image_size 224 --batchsize 8 --rounds 20

Two processes hold the same model once per row, each in a wrapper of its own, and train them in turns: in every round
each trains `--steps` steps, in an order that changes, so that a noisy machine disturbs all alike. Ratios to plain DDP
are formed round by round; shown are their median and range. No comparison of parameters falls into the rounds: what
one costs is timed by itself, `--rounds` times, and spread over the 500 steps that each serves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torchvision  # noqa: E402
from rounds import median_and_range, text_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import retrofit.distributed as rd  # noqa: E402
from retrofit.distributed.consistency import CONSISTENCY_TWIN, PERIOD  # noqa: E402

PLAIN = "plain DDP"


def wrappers() -> dict[str, Callable[[nn.Module], nn.Module]]:
    def wrapped(choice: str) -> Callable[[nn.Module], nn.Module]:
        def wrap(model: nn.Module) -> nn.Module:
            os.environ[CONSISTENCY_TWIN] = choice
            return rd.distribute_model(model)

        return wrap

    return {PLAIN: DistributedDataParallel, **{f"distribute_model, {name}": wrapped(name) for name in ("off", "first")}}


def training(wrap: Callable[[nn.Module], nn.Module], args: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    """Return a wrapped model and a function that trains it one step."""
    torch.manual_seed(0)
    os.environ["RETROFIT_BATCHNORM"] = "local"  # BatchNorm over all ranks would be another model than plain DDP's
    model = wrap(getattr(torchvision.models, args.model)(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(args.batchsize, 3, args.image_size, args.image_size), torch.arange(args.batchsize) % 10

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return model, step


def measure(rank: int, args: argparse.Namespace, store: str, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    trainings = {name: training(wrap, args) for name, wrap in wrappers().items()}
    for _, step in trainings.values():
        for _ in range(args.warm_up):
            step()
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(args.rounds):
        names = list(trainings)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            dist.barrier()
            started = time.perf_counter()
            for _ in range(args.steps):
                trainings[name][1]()
            seconds[name].append((time.perf_counter() - started) / args.steps)
    check = trainings["distribute_model, first"][0].__dict__["_consistency"]
    comparisons = []
    for _ in range(args.rounds):
        dist.barrier()
        started = time.perf_counter()
        with torch.no_grad():
            check._fresh = check._fingerprint(check._model())
            check._compare(False)
        comparisons.append(time.perf_counter() - started)
    if rank == 0:
        answers.put((seconds, comparisons))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="of torchvision (default: %(default)s)")
    parser.add_argument("--image_size", type=int, default=128, help="pixels (default: %(default)s)")
    parser.add_argument("--batchsize", type=int, default=8, help="images per process (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="steps per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=22, help="steps before the rounds (default: %(default)s)")
    args = parser.parse_args()
    context = mp.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=measure, args=(rank, args, f"{folder}/store", answers)) for rank in range(2)
        ]
        for process in processes:
            process.start()
        seconds, comparisons = answers.get()
        for process in processes:
            process.join()
    rows = []
    for name, times in seconds.items():
        ratios = [own / plain for own, plain in zip(times, seconds[PLAIN])]
        rows.append([name, f"{statistics.median(times) * 1e3:.1f}", median_and_range(ratios, 4)])
    print(text_table(["wrapper", "ms per step", "of plain DDP"], rows))
    one, step = statistics.median(comparisons), statistics.median(seconds["distribute_model, first"])
    print(
        f"one comparison of parameters: {one * 1e3:.2f} ms; spread over {PERIOD} steps of {step * 1e3:.1f} ms: "
        f"{100 * one / PERIOD / step:.4f} % of a step ({args.model}, {args.batchsize} images of {args.image_size} "
        f"pixels per process, {args.rounds} rounds of {args.steps} steps)"
    )


if __name__ == "__main__":
    main()
