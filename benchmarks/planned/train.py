"""A training of models.py. Without a launcher it is a script on one process; with one it trains as STRATEGY says.

STRATEGY is what hand-written code does for it; SECONDS names a file for the seconds of each step, of rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from models import PROJECTS, Project
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ACCUMULATED = 4


class Samples(Dataset):
    def __init__(self, project: Project) -> None:
        self.project = project

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.project.sample(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", choices=PROJECTS, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    project, world = PROJECTS[args.project], int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        train(project, project.model(), args.steps, None)
        return
    dist.init_process_group("gloo")
    seconds = {}
    for strategy in os.environ["STRATEGY"].split(";"):
        torch.manual_seed(0)
        model = wrapped(project.model(), strategy)
        seconds[strategy] = train(project, model, args.steps, strategy)
    if dist.get_rank() == 0:
        Path(os.environ["SECONDS"]).write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def wrapped(model: nn.Module, strategy: str) -> nn.Module:
    """Return the model as the strategy has it, with the layers that `retrofit` shards."""
    if strategy == "none":
        return model
    if strategy.startswith("ddp"):
        model = DistributedDataParallel(model)
        if "bf16" in strategy:
            model.register_comm_hook(None, bf16_compress_hook)
        return model
    from torch.distributed.fsdp import fully_shard

    from retrofit.distributed.strategies.converted.blocks import sharded_blocks

    for block in sharded_blocks(model):
        fully_shard(block, reshard_after_forward=strategy == "fsdp")
    return fully_shard(model, reshard_after_forward=strategy == "fsdp")


def train(project: Project, model: nn.Module, steps: int, strategy: str | None) -> list[float]:
    """Return the seconds of each step."""
    data: Any = Samples(project)
    sampler = DistributedSampler(data) if strategy else None
    loader = DataLoader(data, project.batch, sampler=sampler)
    optimizer = project.optimizer(model.parameters(), 1e-4)
    micro = ACCUMULATED if strategy and "batches" in strategy else 1
    seconds, before = [], time.perf_counter()
    for number, (inputs, targets) in enumerate(loader):
        is_last = number % micro == micro - 1
        with nullcontext() if is_last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, targets.flatten() if outputs.dim() == 2 else targets)
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
        if len(seconds) == steps:
            break
    return seconds


if __name__ == "__main__":
    main()
