"""Measure what the instruments of `retrofit why` cost a step: blocks of steps with and without them, in turns.

  python benchmarks/why_overhead.py [--pairs 40] [--block 20] [--projects mlp cnn transformer]

Two processes over gloo train two copies of a network of benchmarks/slowdowns: one whose communication hook is stamped,
in blocks with all instruments in place and noting, and one with torch's own functions put back and no hook. Which one
comes first changes from pair to pair. Printed is the median of the ratios of a pair, with its quartiles and the 95 %
interval of the median (bootstrap).
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, DistributedSampler, _utils, dataloader

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    *(torch, torch.autograd, dist, dist.distributed_c10d, dist.distributed_c10d.Work, builtins, logging.Logger),
    *(dataloader._BaseDataLoaderIter, dataloader.DataLoader, _utils.fetch._BaseDatasetFetcher, DistributedDataParallel),
)
PROJECTS = {"mlp": ("Vectors", 64), "cnn": ("Pictures", 8), "transformer": ("Sequences", 16)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="of blocks (default: 40)")
    parser.add_argument("--block", type=int, default=20, help="steps of a block (default: 20)")
    parser.add_argument("--projects", nargs="+", choices=tuple(PROJECTS), default=tuple(PROJECTS))
    args = parser.parse_args()
    for project in args.projects:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(_rank, (port, project, args.pairs, args.block), nprocs=2)
    return 0


class Switch:
    """Puts torch's own functions back, and the instruments in again."""

    def __init__(self, install: Callable[[], None]) -> None:
        before = [dict(vars(place)) for place in PLACES]
        hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        own = [dict(one) for one in hooks]
        install()
        self._changed = [
            (place, name, old[name], value)
            for place, old in zip(PLACES, before)
            for name, value in dict(vars(place)).items()
            if name in old and old[name] is not value
        ]
        self._hooks = list(zip(hooks, own, [dict(one) for one in hooks]))

    def turn(self, is_on: bool) -> None:
        for place, name, old, new in self._changed:
            setattr(place, name, new if is_on else old)
        for kept, old, new in self._hooks:
            kept.clear()
            kept.update(new if is_on else old)


def _rank(rank: int, port: int, project: str, pairs: int, block: int) -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "slowdowns")]
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    from retrofit.why.recording import Recording

    dist.init_process_group("gloo")
    recording = Recording()
    switch = Switch(lambda: recording.begin(lambda: None))
    module = importlib.import_module(project)
    kind, batch = PROJECTS[project]
    data = getattr(module, kind)()
    trainings = {}
    for is_on in (False, True):
        switch.turn(is_on)
        torch.manual_seed(0)
        trainings[is_on] = _training(DistributedDataParallel(module.Network()), data, batch, project)
    ratios, seconds = [], []
    for pair in range(-2, pairs):  # two to warm up
        times = {}
        for is_on in (False, True) if pair % 2 else (True, False):
            switch.turn(is_on)
            recording.marks.found.clear()
            times[is_on] = _block(trainings[is_on], block)
        if pair >= 0:
            ratios.append(times[True] / times[False])
            seconds.append(times[False] / block)
    if rank == 0:
        print(_said(project, ratios, seconds, len(recording.marks.found) / block), flush=True)
    dist.destroy_process_group()


def _training(model: nn.Module, data: Any, batch: int, project: str) -> Iterator[None]:
    """Train, one step each time it is asked."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(data, batch, sampler=DistributedSampler(data), drop_last=True)
    while True:
        for one in loader:
            optimizer.zero_grad()
            if project == "transformer":
                loss = nn.functional.cross_entropy(model(one[:, :-1]).flatten(0, 1), one[:, 1:].flatten())
            else:
                loss = nn.functional.cross_entropy(model(one[0]), one[1])
            loss.backward()
            optimizer.step()
            yield


def _block(training: Iterator[None], steps: int) -> float:
    """Return the seconds of some steps, begun together."""
    dist.distributed_c10d._get_default_group().barrier().wait()
    start = time.perf_counter()
    for _ in range(steps):
        next(training)
    return time.perf_counter() - start


def _said(project: str, ratios: list[float], seconds: list[float], marks: float) -> str:
    choice = random.Random(0)
    means = sorted(median(choice.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, _, high = quantiles(ratios, n=4)
    return (
        f"{project}: {median(ratios):.4f} (quartiles {low:.4f} to {high:.4f}; 95 % of the median {means[50]:.4f} to "
        f"{means[-51]:.4f}) in {len(ratios)} pairs, {1e3 * median(seconds):.1f} ms per step, {marks:.0f} marks in each"
    )


if __name__ == "__main__":
    sys.exit(main())
