"""Slowdowns that a training of this folder is given: KIND, RANK and SECONDS, from the variable SLOW=KIND:RANK:SECONDS.

data, collate, forward, backward   the rank sleeps there, in every batch
uneven                             its batches are twice as large
contention                         each rank has a core of its own, and this one shares it with another process
logging, checkpoint                rank 0 prints long lines, or saves the model, after every step
buckets                            gradients are reduced in buckets of 10 kB
batchnorm                          BatchNorm over all ranks
threads                            eight threads in each process
link                               nothing here: the link of the machine is slow
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

KIND, _rank, _seconds = os.environ.get("SLOW", "none:0:0").split(":")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
IS_SLOW, SECONDS = int(_rank) == RANK, float(_seconds)
BURN = """
import os
os.sched_setaffinity(0, {%d})
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100000))
"""


def pause(place: str) -> None:
    if place == KIND and IS_SLOW:
        time.sleep(SECONDS)


def collate(samples: Any) -> Any:
    pause("collate")
    return default_collate(samples)


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        pause("backward")
        return gradient


def through(values: torch.Tensor) -> torch.Tensor:
    """Pass values on, in the middle of a forward pass."""
    pause("forward")
    return _SlowBackward.apply(values)


def batch_size(usual: int) -> int:
    return 2 * usual if KIND == "uneven" and IS_SLOW and WORLD > 1 else usual


def bucket_mb() -> float:
    return 0.01 if KIND == "buckets" else 25.0


def prepared(model: nn.Module) -> nn.Module:
    """Return the model as it is wrapped, and begin what lasts for the whole training."""
    if KIND == "threads":
        torch.set_num_threads(8)
    elif KIND == "contention":
        cores = sorted(os.sched_getaffinity(0))
        core = cores[RANK % len(cores)]
        os.sched_setaffinity(0, {core})
        if IS_SLOW:
            subprocess.Popen([sys.executable, "-c", BURN % core])
    if KIND == "batchnorm" and WORLD > 1:
        from retrofit.distributed.ddp.sync_batchnorm import convert_sync_batchnorm

        return convert_sync_batchnorm(model)
    return model


def after_step(model: nn.Module) -> None:
    if RANK == 0 and KIND == "logging":
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            print("a long line about this step " * 400)
    if RANK == 0 and KIND == "checkpoint":
        for number in range(3):
            torch.save(model.state_dict(), f"checkpoint_{number}.pt")
