"""How much faster two processes are than one, and what train.py costs over a hand-written DDP loop.

  python benchmarks/scaling.py                       on the CPU: two processes of one thread each
  python benchmarks/scaling.py --batchsize 16        a smaller batch: communication weighs more

Everything is measured in one run of two ranks, in turns, so that a noisy machine disturbs all alike: an epoch of
train.py on rank 0 alone (a process without a group; rank 1 sleeps), an epoch of train.py on both ranks, an epoch of
the hand-written loop (handwritten_ddp.py) on both. Ratios are formed round by round and their median is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]


def main() -> int:
    args = get_arguments()
    if "RANK" in os.environ:
        return measure(args)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*launcher, *sys.argv[1:]], env=environment).returncode


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=18, help="depth of the ResNet (default: %(default)s)")
    parser.add_argument("--crop_size", type=int, default=128, help="image side, pixels (default: %(default)s)")
    parser.add_argument("--batchsize", type=int, default=64, help="images per process and step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps per epoch measured (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, after one warm-up (default: %(default)s)")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> int:
    """Measure all variants in turn on this rank; rank 0 prints."""
    import torch
    import torch.distributed as dist
    from handwritten_ddp import HandwrittenLoop

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as logdir:
        alone = make_trainer(args, logdir, world_size=1) if os.environ["RANK"] == "0" else None
        dist.init_process_group("gloo")
        ours, by_hand = (
            make_trainer(args, logdir, world_size=2),
            HandwrittenLoop(args.layers, args.crop_size, args.batchsize, args.steps),
        )
        rounds = []
        for _ in range(args.rounds + 1):
            one = run_alone(alone)
            rounds.append((one, run_together(lambda: run_epoch(ours)), run_together(by_hand.run_epoch)))
        if dist.get_rank() == 0:
            report(args, rounds[1:])
        dist.barrier()
        dist.destroy_process_group()
    return 0


def make_trainer(args: argparse.Namespace, logdir: str, world_size: int) -> Any:
    """Return train.py's Trainer over `steps` batches per epoch."""
    import train
    import utils

    options = ["--layers", str(args.layers), "--crop_size", str(args.crop_size), "--batchsize", str(args.batchsize)]
    options += ["--workers", "0", "--epochs", "1000", "--logdir", logdir, "--lr", "0.01", "--lr_scale", "none"]
    length = args.steps * args.batchsize * world_size

    def build_dataset(*positional: Any) -> Any:
        return original(*positional, length=length)

    original = utils.build_dataset
    with mock.patch.object(utils, "build_dataset", build_dataset):
        return train.Trainer(train.get_arguments(options))


def run_epoch(trainer: Any) -> float:
    """Train an epoch of train.py, progress bar and event file included, and return its seconds."""
    from retrofit.distributed import Interruption

    started = time.perf_counter()
    trainer.train_one_epoch(Interruption())
    return time.perf_counter() - started


def run_alone(trainer: Any) -> float:
    """Train an epoch in rank 0 while the others wait, as if there were no process group."""
    import torch.distributed as dist

    seconds = 0.0
    if trainer is not None:
        with mock.patch.object(dist, "is_initialized", lambda: False):
            seconds = run_epoch(trainer)
    dist.barrier()
    return seconds


def run_together(run: Any) -> float:
    """Return the seconds of the slowest rank."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    seconds = torch.tensor([run()])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def report(args: argparse.Namespace, rounds: list[tuple[float, float, float]]) -> None:
    import torch

    images = args.steps * args.batchsize
    one, two, by_hand = zip(*rounds)
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} CPUs, one thread per process;"
        f" deeplabv3p ResNet-{args.layers}, {args.crop_size}x{args.crop_size}, batch {args.batchsize} per process,"
        f" {args.steps} steps, {args.rounds} rounds"
    )
    print(f"1 process    {statistics.median(images / s for s in one):8.1f} images/s  (median)")
    print(f"2 processes  {statistics.median(2 * images / s for s in two):8.1f} images/s")
    print(f"by hand, 2   {statistics.median(2 * images / s for s in by_hand):8.1f} images/s")
    print_ratio("speed-up of 2 processes over 1", [2 * a / b for a, b, _ in rounds])
    print_ratio("time per step, train.py / hand-written DDP loop", [b / c for _, b, c in rounds])


def print_ratio(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.3f}  (rounds: {min(ratios):.3f} .. {max(ratios):.3f})")


if __name__ == "__main__":
    sys.exit(main())
